//! One call of a layer that is no model: its configuration, its dtype policy, its import function.

use super::{Builder, Evidence, MAX_ELEMENTS};
use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::{ImportError, ImportErrorKind};
use crate::frontend::file::Generation;
use crate::frontend::json::Json;
use crate::frontend::layers::cx::{Fail, Out, OwnerId, T, misfit};
use crate::frontend::layers::inputs::Inputs;
use crate::frontend::layers::penalties::OfVariables;
use crate::frontend::layers::policy::Policies;
use crate::frontend::layers::{ClassKind, Entry, Import};
use crate::frontend::model::Layer;

impl Builder {
    pub(super) fn leaf(
        &mut self,
        layer: &Layer,
        row: (&Entry, Import),
        config: &Json,
        owner: OwnerId,
        inputs: &Inputs,
    ) -> Out {
        let result = self.configured(layer, row, config, owner, inputs);
        if let Err(Fail::Placed(errors)) = &result {
            self.further_problems(layer, row, config, owner, inputs, errors);
        }
        result
    }

    /// The problems behind the first one of a layer: what its import says without the key that stopped it, and so on.
    fn further_problems(
        &mut self,
        layer: &Layer,
        row: (&Entry, Import),
        config: &Json,
        owner: OwnerId,
        inputs: &Inputs,
        first: &[ImportError],
    ) {
        let Json::Object(map) = config else { return };
        let mut map = map.clone();
        let mut culprit = first.first().and_then(|e| e.path.child_of(&layer.at));
        let outer = std::mem::replace(&mut self.evidence, Evidence::Guessed);
        while let Some(key) = culprit.take().filter(|key| map.shift_remove(key).is_some()) {
            let Err(Fail::Placed(errors)) = self.configured(layer, row, &Json::Object(map.clone()), owner, inputs)
            else {
                break;
            };
            // Without a key that must be there nothing more is said.
            let gone = |e: &ImportError| matches!(&*e.kind, ImportErrorKind::MissingKey { key: k } if *k == key);
            if errors.iter().any(gone) {
                break;
            }
            culprit = errors.first().and_then(|e| e.path.child_of(&layer.at));
            self.report(Fail::Placed(errors), &layer.at, &layer.path);
        }
        self.evidence = outer;
    }

    fn configured(
        &mut self,
        layer: &Layer,
        row: (&Entry, Import),
        config: &Json,
        owner: OwnerId,
        inputs: &Inputs,
    ) -> Out {
        let at = At { json: config, path: layer.at.clone(), layer: Some(layer.path.clone()) };
        let fields = at.fields()?;
        fields.irrelevant(&BASE);
        let outer_policies = self.cx.policies();
        let outer_origin = self.cx.g.origin.clone();
        let outer_said = self.cx.account.set_said(OfVariables::read(&fields)?);
        self.cx.set_origin(&layer.path);
        let result = self.typed(row, &fields, owner, inputs);
        let result = result.and_then(|tensors| {
            let outer = self.cx.enter(owner);
            let penalised = self.penalise(row.0.class, &fields, &layer.path, &tensors);
            self.cx.enter(outer);
            penalised.map(|()| tensors)
        });
        self.cx.account.set_said(outer_said);
        self.cx.set_outer_policies(outer_policies);
        self.cx.g.origin = outer_origin;
        // Keys are checked where the import function has asked for all it knows.
        if result.is_ok() && self.read.insert(layer.at.clone()) {
            self.problems.extend(fields.finish());
        }
        result
    }

    fn typed(
        &mut self,
        (entry, import): (&Entry, Import),
        fields: &Fields<'_>,
        owner: OwnerId,
        inputs: &Inputs,
    ) -> Out {
        // The type in an operation's configuration is an argument of its own.
        if entry.kind == ClassKind::Layer {
            self.cx.set_policies(Policies::read(fields)?);
        }
        let inputs = match entry.kind == ClassKind::Layer && !self.leaves_inputs(entry.class) {
            true => self.autocast(inputs)?,
            false => inputs.clone_items(),
        };
        let mut tensors = {
            let outer = self.cx.enter(owner);
            let result = import(self, fields, &inputs);
            self.cx.enter(outer);
            result?
        };
        inputs.finish()?;
        // With extents and sizes bounded, no product of two of them overflows.
        if let Some(large) = tensors.iter().map(|t| self.cx.g.shape(t.value)).find(|s| s.elements() > MAX_ELEMENTS) {
            return Err(misfit(format!("its result of shape {large} has more than {MAX_ELEMENTS} elements")));
        }
        entry.masks.follow(&mut self.cx, fields, &inputs, &mut tensors)?;
        Ok(tensors)
    }

    /// Whether a layer takes its inputs in the types they come in.
    fn leaves_inputs(&self, class: &str) -> bool {
        const ALWAYS: [&str; 6] =
            ["Embedding", "CategoryEncoding", "Hashing", "IntegerLookup", "HashedCrossing", "Pipeline"];
        const KERAS_3: [&str; 3] = ["LayerNormalization", "GroupNormalization", "ReversibleEmbedding"];
        const KERAS_2: [&str; 3] = ["TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer"];
        ALWAYS.contains(&class)
            || match self.cx.generation {
                Generation::Three => KERAS_3.contains(&class),
                Generation::One | Generation::Two => KERAS_2.contains(&class),
            }
    }

    /// Keras casts floating inputs to a layer's compute type: Keras 3 all of them and to integers too, Keras 2 those of the first
    /// argument (to which recurrent layers add their states) and to floating types only.
    fn autocast(&mut self, inputs: &Inputs) -> Out<Inputs> {
        let mut items = inputs.clone_items();
        let (to, generation, cx) = (self.cx.dtype, self.cx.generation, &mut self.cx);
        let mut cast = |t: T| -> Out<T> {
            let float = cx.g.ty(t.value).dtype.is_float();
            let casts = float && (to.is_float() || generation == Generation::Three);
            Ok(T { value: if casts { cx.g.cast(to, t.value)? } else { t.value }, mask: t.mask })
        };
        match generation {
            Generation::Three => {
                items.args.iter_mut().try_for_each(|item| item.map(&mut cast))?;
                items.kwargs.values_mut().try_for_each(|item| item.map(&mut cast))?;
            }
            Generation::One | Generation::Two => {
                items.args.iter_mut().take(1).try_for_each(|item| item.map(&mut cast))?;
                let first = ["inputs", "initial_state"];
                let named = items.kwargs.iter_mut().filter(|(name, _)| first.contains(&name.as_str()));
                named.map(|(_, item)| item).try_for_each(|item| item.map(&mut cast))?;
            }
        }
        Ok(items)
    }
}

/// Keys every layer has. The dtype is read before the layer's own keys.
const BASE: [&str; 8] = [
    "name",
    "trainable",
    "dtype",
    "batch_input_shape",
    "batch_shape",
    "input_dtype",
    "input_shape",
    "activity_regularizer",
];
