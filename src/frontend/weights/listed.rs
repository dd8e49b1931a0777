//! The order in which Keras lists a model's variables.

use super::{VarSpec, VarTree, Visited};
use crate::frontend::file::Generation;

impl VarTree {
    /// All variables in the order of Keras's `model.weights`.
    ///
    /// Keras 3 lists an owner's own, those that were made to train first, and then its parts'. Keras 2 lists models layer
    /// by layer, and of a layer with all its parts what trains first.
    pub fn listed(&self, generation: Generation) -> Vec<&VarSpec> {
        let mut listed = Vec::new();
        match generation {
            Generation::Three => self.owner_first(&mut listed),
            Generation::One | Generation::Two => self.layer_by_layer(true, &mut listed),
        }
        // A wrapper that holds a variable of what it wraps lists it before its own.
        let mut unique: Vec<&VarSpec> = Vec::new();
        for spec in listed {
            if !unique.iter().any(|known| known.path == spec.path) {
                unique.push(spec);
            }
        }
        unique
    }

    fn owner_first<'t>(&'t self, listed: &mut Vec<&'t VarSpec>) {
        let parts = self.parts.iter().flat_map(VarTree::flatten);
        listed.extend(parts.take(self.repeated));
        listed.extend(self.vars.iter().filter(|spec| spec.trainable));
        listed.extend(self.vars.iter().filter(|spec| !spec.trainable));
        self.parts.iter().for_each(|part| part.owner_first(listed));
    }

    fn layer_by_layer<'t>(&'t self, outer_trains: bool, listed: &mut Vec<&'t VarSpec>) {
        if matches!(self.class.as_str(), "Sequential" | "Functional") {
            let trains = outer_trains && self.trainable;
            return self.parts.iter().for_each(|part| part.layer_by_layer(trains, listed));
        }
        let mut own: Vec<Visited<'t>> = self.visit(outer_trains);
        own.sort_by_key(|var| !var.trainable);
        listed.extend(own.into_iter().map(|var| var.spec));
    }
}
