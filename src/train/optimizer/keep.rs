//! What an optimizer keeps from step to step, in the order in which Keras makes and saves it.

use std::collections::{BTreeMap, BTreeSet};

use intwain_ir::{DType, Type, Value};

use super::{Initial, Slot};

/// The list of slots while it is made.
#[derive(Debug)]
pub(super) struct Keep<'v> {
    /// The trainable variables.
    variables: &'v [(String, Type)],
    slots: Vec<Slot>,
}

impl<'v> Keep<'v> {
    /// An empty list.
    pub(super) fn new(variables: &'v [(String, Type)]) -> Keep<'v> {
        Keep { variables, slots: Vec::new() }
    }

    /// The trainable variables with their paths.
    pub(super) fn variables(&self) -> &'v [(String, Type)] {
        self.variables
    }

    /// One tensor for all variables.
    pub(super) fn once(&mut self, scope: &str, role: &'static str, ty: Type, initial: Initial) {
        let path = format!("{scope}/{}", role.trim_start_matches("outer_"));
        self.slots.push(Slot { path, role, ty, initial, variable: None });
    }

    /// Tensors like the variables: all of these for the first, then for the second.
    pub(super) fn each(&mut self, scope: &str, roles: &[(&'static str, Initial)]) {
        for i in 0..self.variables.len() {
            roles.iter().for_each(|(role, initial)| self.like(scope, i, role, initial.clone()));
        }
    }

    /// A tensor like one of the variables.
    pub(super) fn like(&mut self, scope: &str, variable: usize, role: &'static str, initial: Initial) {
        let ty = self.variables[variable].1.clone();
        self.beside(scope, variable, role, ty, initial);
    }

    /// A tensor for one of the variables.
    pub(super) fn beside(&mut self, scope: &str, variable: usize, role: &'static str, ty: Type, initial: Initial) {
        let path = format!("{scope}/{}_{role}", self.variables[variable].0.replace('/', "_"));
        self.slots.push(Slot { path, role, ty, initial, variable: Some(variable) });
    }

    /// The list, in which no two paths are the same.
    pub(super) fn finish(mut self) -> Vec<Slot> {
        let mut taken = BTreeSet::new();
        for slot in &mut self.slots {
            let wanted = slot.path.clone();
            let mut n = 0;
            while !taken.insert(slot.path.clone()) {
                n += 1;
                slot.path = format!("{wanted}_{n}");
            }
        }
        self.slots
    }
}

/// Where in a list of slots each is.
#[derive(Debug)]
pub(super) struct Places(BTreeMap<(&'static str, Option<usize>), usize>);

impl Places {
    /// The places of a list.
    pub(super) fn of(slots: &[Slot]) -> Places {
        Places(slots.iter().enumerate().map(|(i, slot)| ((slot.role, slot.variable), i)).collect())
    }

    /// Where a slot is.
    pub(super) fn find(&self, role: &'static str, variable: Option<usize>) -> Option<usize> {
        self.0.get(&(role, variable)).copied()
    }
}

/// The type of scalars that Keras keeps in its default float type: f64 where every variable is.
pub(super) fn float(variables: &[(String, Type)]) -> DType {
    let wide = !variables.is_empty() && variables.iter().all(|(_, ty)| ty.dtype == DType::F64);
    if wide { DType::F64 } else { DType::F32 }
}

/// The values of slots during a step.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) places: Places,
    pub(super) values: Vec<Value>,
}
