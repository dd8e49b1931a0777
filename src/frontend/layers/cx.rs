//! What an import function works with: the graph being built, the variables declared so far, and tensors with masks.

use std::collections::{BTreeMap, BTreeSet};

use intwain_ir::ops::TypeError;
use intwain_ir::{DType, Graph, Origin, ParamKind, Shape, Trainable, Type, Value};

use super::forced::Training;
use crate::frontend::cursor::Fields;
use crate::frontend::error::{ImportError, ImportErrorKind};
use crate::frontend::file::Generation;
use crate::frontend::init::Initializer;
use crate::frontend::weights::{Channels, Slot, VarSpec, VarTree};

use super::penalties::{Account, Penalties};
use super::phase::Phase;
use super::policy::{Policies, Policy};
use super::spectral::Spectral;

/// A tensor of the model with the mask Keras would carry along with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct T {
    /// The tensor.
    pub(crate) value: Value,
    /// `bool[N, T]`, false where a step is to be skipped.
    pub(crate) mask: Option<Value>,
}

impl From<Value> for T {
    fn from(value: Value) -> T {
        T { value, mask: None }
    }
}

/// Why a layer could not be imported. What has no place yet gets the layer's.
#[derive(Debug)]
pub(crate) enum Fail {
    /// Problems with their places.
    Placed(Vec<ImportError>),
    /// A problem of the layer being imported.
    Here(ImportErrorKind),
}

impl From<ImportError> for Fail {
    fn from(error: ImportError) -> Fail {
        Fail::Placed(vec![error])
    }
}

impl From<Vec<ImportError>> for Fail {
    fn from(errors: Vec<ImportError>) -> Fail {
        Fail::Placed(errors)
    }
}

impl From<ImportErrorKind> for Fail {
    fn from(kind: ImportErrorKind) -> Fail {
        Fail::Here(kind)
    }
}

impl From<TypeError> for Fail {
    fn from(error: TypeError) -> Fail {
        Fail::Here(ImportErrorKind::Shape(error.to_string()))
    }
}

/// What import functions give.
pub(crate) type Out<X = Vec<T>> = Result<X, Fail>;

/// A feature that is not there.
pub(crate) fn unsupported(what: impl Into<String>) -> Fail {
    Fail::Here(ImportErrorKind::Unsupported { what: what.into(), remedy: None })
}

/// Shapes that do not fit.
pub(crate) fn misfit(what: impl Into<String>) -> Fail {
    Fail::Here(ImportErrorKind::Shape(what.into()))
}

/// One owner of variables: a layer, a model, a cell.
#[derive(Debug)]
struct Owner {
    slot: Slot,
    class: String,
    path: String,
    own_trainable: bool,
    /// With everything around it.
    trains: bool,
    vars: Vec<(VarSpec, Value)>,
    repeated: usize,
    channels: Channels,
    factors: usize,
    parts: Vec<usize>,
}

/// Index of an owner.
pub(crate) type OwnerId = usize;

/// The state of an import.
#[derive(Debug)]
pub(crate) struct Cx {
    /// The graph.
    pub(crate) g: Graph,
    /// Who wrote the file.
    pub(crate) generation: Generation,
    /// The floating type in place of what the file says.
    pub(crate) float: Option<DType>,
    /// Tensors that hold extents, that of the batch among them.
    pub(crate) extents: Vec<Value>,
    /// The type that the current layer computes in.
    pub(crate) dtype: DType,
    /// Whether the layers of the current call behave as in training whatever the model is run for.
    pub(crate) training: Training,
    /// Tensors and the masks that were taken off them.
    taken_off: BTreeSet<(Value, Value)>,
    /// The type that the current layer's variables are held in.
    pub(crate) variable: DType,
    /// Policies of the current layer's sublayers, where it has a map of them.
    sublayers: Option<Policies>,
    owners: Vec<Owner>,
    /// Parts by their owner and path.
    places: BTreeMap<(OwnerId, String), Vec<OwnerId>>,
    owner: OwnerId,
    kept: Vec<Kept>,
    /// Variables that training changes by itself.
    updated: Vec<Kept>,
    /// The kernel that is normalised when its layer reads it.
    pub(super) spectral: Option<Spectral>,
    /// Rows of the call, where the model's inputs agree on them.
    pub(super) call_rows: Option<usize>,
    /// How often each layer has drawn random numbers, by its path.
    pub(super) draws: BTreeMap<String, u64>,
    /// The number of the call, where something is random.
    pub(super) step: Option<Kept>,
    /// What the model is imported for.
    pub(crate) phase: Phase,
    /// What is added to the loss.
    pub(crate) account: Account,
}

/// A tensor that is kept from one call of the model to the next.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// Its qualified name.
    pub(crate) path: String,
    /// What it is when the call begins.
    pub(crate) before: Value,
    /// What it is behind the layers so far.
    pub(crate) now: Value,
}

/// Above this a variable is a mistake: 256 GiB of f32.
const MAX_ELEMENTS: usize = 1 << 36;

impl Cx {
    /// An import of a model, whose owner is 0.
    pub(crate) fn new(
        name: &str,
        class: &str,
        trainable: bool,
        generation: Generation,
        float: Option<DType>,
        phase: Phase,
        penalties: Penalties,
    ) -> Cx {
        let root = Owner {
            slot: Slot::Listed("layers"),
            class: class.to_string(),
            path: String::new(),
            own_trainable: trainable,
            trains: trainable,
            vars: Vec::new(),
            repeated: 0,
            channels: Channels::Last,
            factors: 0,
            parts: Vec::new(),
        };
        let dtype = float.unwrap_or(DType::F32);
        let (g, taken_off, training) = (Graph::new(name), BTreeSet::new(), Training::AsRun);
        let (variable, sublayers, owners) = (dtype, None, vec![root]);
        let (places, kept, extents, updated) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        Cx {
            g,
            generation,
            float,
            extents,
            dtype,
            variable,
            sublayers,
            taken_off,
            training,
            owners,
            places,
            owner: 0,
            kept,
            updated,
            account: Account::new(penalties, &phase),
            spectral: None,
            call_rows: None,
            draws: BTreeMap::new(),
            step: None,
            phase,
        }
    }

    /// The owner of what is declared now.
    pub(crate) fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The qualified name of the current owner.
    pub(crate) fn path(&self) -> &str {
        &self.owners[self.owner].path
    }

    /// A part of an owner; the same one when it is asked for again.
    pub(crate) fn part_of(&mut self, outer: OwnerId, slot: Slot, class: &str, path: &str, trainable: bool) -> OwnerId {
        let known = self.places.entry((outer, path.to_string())).or_default();
        if let Some(known) = known.iter().copied().find(|&p| self.owners[p].slot == slot) {
            return known;
        }
        known.push(self.owners.len());
        let id = self.owners.len();
        self.owners.push(Owner {
            slot,
            class: class.to_string(),
            path: path.to_string(),
            own_trainable: trainable,
            trains: trainable && self.owners[outer].trains,
            vars: Vec::new(),
            repeated: 0,
            channels: Channels::Last,
            factors: 0,
            parts: Vec::new(),
        });
        self.owners[outer].parts.push(id);
        id
    }

    /// Whether an owner is a part of another.
    pub(crate) fn has_part(&self, outer: OwnerId, part: OwnerId) -> bool {
        self.owners[outer].parts.contains(&part)
    }

    /// A part of the current owner.
    pub(crate) fn part(&mut self, slot: Slot, class: &str, name: &str, trainable: bool) -> OwnerId {
        let path = self.below(name);
        self.part_of(self.owner, slot, class, &path, trainable)
    }

    /// A name below the current owner.
    pub(crate) fn below(&self, name: &str) -> String {
        if self.path().is_empty() { name.to_string() } else { format!("{}/{name}", self.path()) }
    }

    /// Makes another owner the current one and gives the one before.
    pub(crate) fn enter(&mut self, owner: OwnerId) -> OwnerId {
        let outer = std::mem::replace(&mut self.owner, owner);
        if let Some(policies) = &self.sublayers {
            let policy = policies.of(&self.owners[owner].path).in_float(self.float);
            self.use_policy(policy);
        }
        outer
    }

    /// The policies that hold, to be put back after a layer.
    pub(crate) fn policies(&self) -> (Policy, Option<Policies>) {
        (Policy { compute: self.dtype, variable: self.variable }, self.sublayers.clone())
    }

    /// Puts back what [`Cx::policies`] gave.
    pub(crate) fn set_outer_policies(&mut self, (policy, sublayers): (Policy, Option<Policies>)) {
        self.use_policy(policy);
        self.sublayers = sublayers;
    }

    /// Makes a layer's policies those that hold.
    pub(crate) fn set_policies(&mut self, policies: Policies) {
        self.use_policy(policies.own().in_float(self.float));
        self.sublayers = Some(policies).filter(Policies::is_map);
    }

    /// Makes a cell's policy the one that holds.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.use_policy(policy.in_float(self.float));
    }

    fn use_policy(&mut self, policy: Policy) {
        (self.dtype, self.variable) = (policy.compute, policy.variable);
    }

    /// A variable of the current owner, in the type that the layer computes in; the same one when a shared layer is called again.
    pub(crate) fn var(
        &mut self,
        name: &str,
        shape: &[usize],
        initializer: Initializer,
        trainable: Trainable,
    ) -> Out<Value> {
        let held = self.var_of(self.variable, name, shape, initializer, trainable)?;
        match self.dtype.is_float() && self.variable.is_float() {
            true => Ok(self.g.cast(self.dtype, held)?),
            false => Ok(held),
        }
    }

    /// A variable that Keras does not cast to what the layer computes in, in another type.
    pub(crate) fn var_as(
        &mut self,
        dtype: DType,
        name: &str,
        shape: &[usize],
        initializer: Initializer,
        trainable: Trainable,
    ) -> Out<Value> {
        let held = self.var_of(self.variable, name, shape, initializer, trainable)?;
        Ok(self.g.cast(dtype, held)?)
    }

    /// A variable in a type of its own, which it is used in too.
    pub(crate) fn var_of(
        &mut self,
        dtype: DType,
        name: &str,
        shape: &[usize],
        initializer: Initializer,
        trainable: Trainable,
    ) -> Out<Value> {
        let held = self.held(dtype, name, shape, initializer, trainable)?;
        self.normalised(name, held)
    }

    fn held(
        &mut self,
        dtype: DType,
        name: &str,
        shape: &[usize],
        initializer: Initializer,
        trainable: Trainable,
    ) -> Out<Value> {
        let path = self.below(name);
        if let Some((spec, value)) = self.owners[self.owner].vars.iter().find(|(spec, _)| spec.path == path) {
            return match spec.shape == shape {
                true => Ok(self.updated.iter().find(|k| k.before == *value).map_or(*value, |k| k.now)),
                false => Err(misfit(format!(
                    "a shared layer's `{name}` has the shape {:?} in its first call and {shape:?} in another",
                    spec.shape
                ))),
            };
        }
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if elements.is_none_or(|n| n > MAX_ELEMENTS) {
            return Err(misfit(format!("`{name}` of shape {shape:?} has more than {MAX_ELEMENTS} elements")));
        }
        let trains = self.owners[self.owner].trains && trainable == Trainable::Yes;
        let frozen = if trains { Trainable::Yes } else { Trainable::Frozen };
        let value = self.g.weight(&path, Type::new(dtype, Shape::from(shape)), frozen);
        let (regularizer, constraint) = self.account.of_variable(name);
        let (shape, trainable) = (shape.to_vec(), trainable == Trainable::Yes);
        let spec = VarSpec { path, shape, dtype, initializer, trainable, regularizer, constraint };
        self.owners[self.owner].vars.push((spec, value));
        Ok(value)
    }

    /// Gives a variable of the current owner, which must be declared, the value that it has behind this call.
    pub(crate) fn update(&mut self, name: &str, next: Value) -> Out<()> {
        let path = self.below(name);
        let (spec, before) = self.owners[self.owner]
            .vars
            .iter()
            .find(|(spec, _)| spec.path == path)
            .expect("a layer declares its variables before it changes them");
        let (dtype, before) = (spec.dtype, *before);
        let now = self.g.cast(dtype, next)?;
        match self.updated.iter_mut().find(|k| k.before == before) {
            Some(known) => known.now = now,
            None => self.updated.push(Kept { path, before, now }),
        }
        Ok(())
    }

    /// A variable of the current owner, which must be declared, as it is now.
    pub(super) fn updated_var(&mut self, dtype: DType, name: &str) -> Out<Value> {
        let path = self.below(name);
        let known = self.owners[self.owner].vars.iter().find(|(spec, _)| spec.path == path);
        let (_, before) = known.expect("a layer declares its variables before it reads them");
        let now = self.updated.iter().find(|k| k.before == *before).map_or(*before, |k| k.now);
        Ok(self.g.cast(dtype, now)?)
    }

    /// Whether the current owner and all around it train.
    pub(super) fn unfrozen(&self) -> bool {
        self.owners[self.owner].trains
    }

    /// Variables that a call changes by itself. Only training keeps what layers change that always behave as in training.
    pub(crate) fn updated(&self) -> &[Kept] {
        match self.phase {
            Phase::Training(_) => &self.updated,
            Phase::Inference => &[],
        }
    }

    /// A tensor of the current owner that is kept from call to call, and its qualified name. A shared layer that is called
    /// again finds it as the call before has left it.
    pub(crate) fn kept(&mut self, name: &str, ty: Type) -> (String, Value) {
        let path = self.below(name);
        if let Some(known) = self.kept.iter().find(|k| k.path == path) {
            return (path, known.now);
        }
        let value = self.g.param(&path, ty, ParamKind::State { next: None });
        self.kept.push(Kept { path: path.clone(), before: value, now: value });
        (path, value)
    }

    /// Gives a kept tensor its next value.
    pub(crate) fn keep(&mut self, path: &str, next: Value) {
        if let Some(kept) = self.kept.iter_mut().find(|k| k.path == path) {
            kept.now = next;
        }
    }

    /// What is kept from call to call, the number of the call last.
    pub(crate) fn all_kept(&self) -> impl Iterator<Item = &Kept> {
        self.kept.iter().chain(&self.step)
    }

    /// Says how many variables of its parts Keras stores once more before the current owner's own.
    pub(crate) fn repeats(&mut self, variables: usize) {
        self.owners[self.owner].repeated = variables;
    }

    /// Says where the images that the current owner convolves have their channels.
    pub(crate) fn channels(&mut self, channels: Channels) {
        self.owners[self.owner].channels = channels;
    }

    /// Reads what says that Keras trains low-rank factors in place of the current owner's kernel.
    pub(crate) fn low_rank(&mut self, fields: &Fields<'_>, kernel: &[usize]) -> Out<()> {
        fields.irrelevant(&["lora_alpha"]);
        if let Some(rank) = fields.opt("lora_rank") {
            if self.phase != Phase::Inference {
                let what = "training the factors of `lora_rank` in place of the kernel".to_string();
                let remedy = Some("take `lora_rank` away to train the kernel itself; files hold the product merged");
                return Err(rank.error(ImportErrorKind::Unsupported { what, remedy }).into());
            }
            let (rows, columns) = kernel.split_at(kernel.len() - 1);
            let factors = (rows.iter().product::<usize>() + columns[0]).saturating_mul(rank.positive()?);
            self.owners[self.owner].factors = factors;
        }
        Ok(())
    }

    /// The extents of an owner's variable.
    pub(crate) fn var_shape(&self, owner: OwnerId, name: &str) -> Option<&[usize]> {
        let path = format!("{}/{name}", self.owners[owner].path);
        self.owners[owner].vars.iter().find(|(spec, _)| spec.path == path).map(|(spec, _)| spec.shape.as_slice())
    }

    /// The declared variables as a tree, and their values in the order of [`VarTree::flatten`].
    pub(crate) fn tree(&self) -> (VarTree, Vec<Value>) {
        let mut values = Vec::new();
        let tree = self.tree_of(0, &mut values);
        (tree, values)
    }

    fn tree_of(&self, id: OwnerId, values: &mut Vec<Value>) -> VarTree {
        let owner = &self.owners[id];
        values.extend(owner.vars.iter().map(|(_, value)| *value));
        VarTree {
            slot: owner.slot.clone(),
            class: owner.class.clone(),
            path: owner.path.clone(),
            trainable: owner.own_trainable,
            vars: owner.vars.iter().map(|(spec, _)| spec.clone()).collect(),
            repeated: owner.repeated,
            channels: owner.channels,
            factors: owner.factors,
            parts: owner.parts.iter().map(|&part| self.tree_of(part, values)).collect(),
        }
    }

    /// Names the layer that nodes come from.
    pub(crate) fn set_origin(&mut self, path: &str) {
        self.g.origin = Origin::new(path);
    }

    /// Takes the mask off a tensor: calls from now on find it without.
    pub(crate) fn take_mask_off(&mut self, t: T) {
        self.taken_off.extend(t.mask.map(|mask| (t.value, mask)));
    }

    /// A tensor as a call finds it now.
    pub(crate) fn as_found(&self, t: T) -> T {
        T { mask: t.mask.filter(|mask| !self.taken_off.contains(&(t.value, *mask))), ..t }
    }

    /// A tensor's extents.
    pub(crate) fn dims(&self, x: Value) -> Vec<usize> {
        self.g.shape(x).to_vec()
    }

    /// A tensor's rank.
    pub(crate) fn rank(&self, x: Value) -> usize {
        self.g.shape(x).len()
    }

    /// A floating tensor in the type that statistics of it are computed in, at least f32; others in the layer's.
    pub(crate) fn for_statistics(&mut self, x: Value) -> Out<Value> {
        let dtype = self.g.ty(x).dtype;
        let dtype = if dtype.is_float() { dtype } else { self.dtype };
        Ok(self.g.cast(dtype.accumulator(), x)?)
    }

    /// What was computed for [`Cx::for_statistics`] of `x`, rounded as Keras does: to the type of `x`, then to the layer's.
    pub(crate) fn of_statistics(&mut self, y: Value, x: Value) -> Out<Value> {
        let dtype = self.g.ty(x).dtype;
        let y = if dtype.is_float() { self.g.cast(dtype, y)? } else { y };
        Ok(self.g.cast(self.dtype, y)?)
    }

    /// A tensor in the layer's floating type.
    pub(crate) fn floating(&mut self, x: Value) -> Out<Value> {
        Ok(self.g.cast(self.dtype, x)?)
    }

    /// An axis counted from the end where it is negative.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Out<usize> {
        let from_start = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(from_start) {
            Ok(axis) if axis < rank => Ok(axis),
            _ => Err(misfit(format!("axis {axis} of a tensor of rank {rank}"))),
        }
    }
}
