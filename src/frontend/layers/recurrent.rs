//! Recurrent layers and wrappers over time.
//!
//! A layer becomes one `scan`. What does not depend on the state (x·W + b of all steps) is computed before it in one
//! product. Sequences are `[T, N, ..]` inside.

use std::sync::Arc;

use intwain_ir::ops::{Concat, Reverse, Scan};
use intwain_ir::{DType, Graph, Rows, Shape, Trainable, Type, Value};

use super::activations::{Activation, initializer};
use super::build::Builder;
use super::conv::add_bias;
use super::cx::{Cx, Out, T, misfit, unsupported};
use super::inputs::{Inputs, Item};
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::init::Initializer;
use crate::frontend::json::Json;
use crate::frontend::model::LayerBody;
use crate::frontend::weights::Slot;

/// The arithmetic of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lstm,
    /// The reset gate is applied to the state's product.
    GruAfter,
    /// The reset gate is applied to the state.
    GruBefore,
    Simple,
}

impl Kind {
    /// Stretches of `units` columns in the kernels.
    fn gates(self) -> usize {
        match self {
            Kind::Lstm => 4,
            Kind::GruAfter | Kind::GruBefore => 3,
            Kind::Simple => 1,
        }
    }

    fn states(self) -> usize {
        match self {
            Kind::Lstm => 2,
            Kind::GruAfter | Kind::GruBefore | Kind::Simple => 1,
        }
    }
}

struct Cell {
    kind: Kind,
    units: usize,
    activation: Activation,
    recurrent: Activation,
    use_bias: bool,
}

/// How the sequence is walked and what comes out.
struct Walk {
    backwards: bool,
    sequences: bool,
    state: bool,
    zero_masked: bool,
}

pub(super) fn lstm(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    layer(b, fields, inputs, Kind::Lstm, ("LSTMCell", "lstm_cell"))
}

pub(super) fn gru(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let after = fields.bool_or("reset_after", b.cx.generation == Generation::Three)?;
    let kind = if after { Kind::GruAfter } else { Kind::GruBefore };
    layer(b, fields, inputs, kind, ("GRUCell", "gru_cell"))
}

pub(super) fn simple_rnn(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    layer(b, fields, inputs, Kind::Simple, ("SimpleRNNCell", "simple_rnn_cell"))
}

/// Keys that matter for training only, or say how and not what is computed.
const NEUTRAL: [&str; 12] = [
    "dropout",
    "recurrent_dropout",
    "seed",
    "unroll",
    "implementation",
    "use_cudnn",
    "kernel_regularizer",
    "recurrent_regularizer",
    "bias_regularizer",
    "kernel_constraint",
    "recurrent_constraint",
    "bias_constraint",
];

fn layer(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, kind: Kind, cell: (&str, &str)) -> Out {
    fields.irrelevant(&NEUTRAL);
    fields.irrelevant(&["input_dim", "input_length"]);
    fields.neutral("time_major", &[Json::Bool(false)])?;
    fields.neutral("stateful", &[Json::Bool(false)])?;
    let sigmoid = Activation::Sigmoid;
    let spec = Cell {
        kind,
        units: fields.require("units")?.positive()?,
        activation: Activation::read(&b.cx, fields, "activation", Activation::Tanh)?,
        recurrent: match kind {
            Kind::Simple => sigmoid,
            Kind::Lstm | Kind::GruAfter | Kind::GruBefore => {
                Activation::read(&b.cx, fields, "recurrent_activation", sigmoid)?
            }
        },
        use_bias: fields.bool_or("use_bias", true)?,
    };
    let walk = Walk {
        backwards: fields.bool_or("go_backwards", false)?,
        sequences: fields.bool_or("return_sequences", false)?,
        state: fields.bool_or("return_state", false)?,
        zero_masked: fields.bool_or("zero_output_for_mask", false)?,
    };
    let unit_forget = kind == Kind::Lstm && fields.bool_or("unit_forget_bias", true)?;
    let kernel_init = initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?;
    let recurrent_init = initializer(fields, "recurrent_initializer", Initializer::Orthogonal { gain: 1.0 })?;
    let mut bias_init = initializer(fields, "bias_initializer", Initializer::ZEROS)?;
    let u = spec.units;
    if unit_forget && bias_init == Initializer::ZEROS {
        bias_init = Initializer::Stretches(vec![(u, 0.0), (u, 1.0), (2 * u, 0.0)]);
    }

    let given = inputs.many()?;
    let x = given[0];
    let initial = match inputs.named("initial_state") {
        Some(item) => item.tensors().iter().map(|t| t.value).collect(),
        None => given[1..].iter().map(|t| t.value).collect::<Vec<_>>(),
    };
    if !initial.is_empty() && initial.len() != kind.states() {
        return Err(misfit(format!("has {} state(s), {} are given", kind.states(), initial.len())));
    }
    let mask = inputs.tensor(1, "mask")?.map(|m| m.value).or(x.mask);
    let value = b.cx.floating(x.value)?;
    let &[_, _, features] = b.cx.dims(value).as_slice() else {
        return Err(misfit(format!("takes a tensor of rank 3, its input has the shape {:?}", b.cx.dims(value))));
    };
    let part = b.cx.part(Slot::Attribute("cell"), cell.0, cell.1, true);
    let outer = b.cx.enter(part);
    let columns = u * kind.gates();
    let vars = (|| -> Out<(Value, Value, Option<Value>)> {
        let kernel = b.cx.var("kernel", &[features, columns], kernel_init, Trainable::Yes)?;
        let recurrent = b.cx.var("recurrent_kernel", &[u, columns], recurrent_init, Trainable::Yes)?;
        let shape = if kind == Kind::GruAfter { vec![2, columns] } else { vec![columns] };
        let bias = if spec.use_bias { Some(b.cx.var("bias", &shape, bias_init, Trainable::Yes)?) } else { None };
        Ok((kernel, recurrent, bias))
    })();
    b.cx.enter(outer);
    let vars = vars?;
    let mut outputs = run(&mut b.cx, &spec, &walk, value, mask, &initial, vars)?;
    if walk.sequences {
        outputs[0].mask = mask;
    }
    Ok(outputs)
}

/// Builds the scan and gives the output, then the states where they are asked for.
fn run(
    cx: &mut Cx,
    cell: &Cell,
    walk: &Walk,
    x: Value,
    mask: Option<Value>,
    initial: &[Value],
    (kernel, recurrent, bias): (Value, Value, Option<Value>),
) -> Out {
    let u = cell.units;
    let dims = cx.dims(x);
    let (n, steps) = (dims[0], dims[1]);
    let dtype = cx.g.ty(x).dtype;
    let (input_bias, state_bias) = match (bias, cell.kind) {
        (Some(bias), Kind::GruAfter) => {
            let row = |cx: &mut Cx, r: usize| -> Out<Value> {
                let row = cx.g.slice_dim(bias, 0, r..r + 1)?;
                Ok(cx.g.reshape(row, &Shape::from([3 * u]))?)
            };
            (Some(row(cx, 0)?), Some(row(cx, 1)?))
        }
        (bias, _) => (bias, None),
    };
    let mut xs = cx.g.matmul(x, kernel)?;
    if let Some(bias) = input_bias {
        xs = add_bias(cx, xs, bias)?;
    }
    let mut sequences = vec![cx.g.transpose(xs, &[1, 0, 2])?];
    if let Some(mask) = mask {
        let mask = cx.g.cast(DType::Bool, mask)?;
        let mask = cx.g.transpose(mask, &[1, 0])?;
        sequences.push(cx.g.broadcast(mask, &Shape::from([steps, n, u]), &[0, 1])?);
    }
    if walk.backwards {
        sequences =
            sequences.into_iter().map(|s| Ok(cx.g.push(Reverse { dims: vec![0] }, &[s])?)).collect::<Out<_>>()?;
    }
    let state_ty = Type::new(dtype, Shape::from([n, u]));
    let zeros = cx.g.full(dtype, 0.0, &state_ty.shape)?;
    let mut states: Vec<Value> = if initial.is_empty() { vec![zeros; cell.kind.states()] } else { initial.to_vec() };
    // A masked step repeats the output before it, which at the start is 0 whatever the initial state.
    let carries_output = mask.is_some() && !walk.zero_masked;
    if carries_output {
        states.push(zeros);
    }
    let wholes: Vec<Value> = match cell.kind {
        Kind::GruBefore => vec![cx.g.slice_dim(recurrent, 1, 0..2 * u)?, cx.g.slice_dim(recurrent, 1, 2 * u..3 * u)?],
        Kind::Lstm | Kind::GruAfter | Kind::Simple => [recurrent].into_iter().chain(state_bias).collect(),
    };

    let inner = |ty: &Type| ty.with_shape(Shape::from(&ty.shape[1..]));
    let mut step = Step { cx: Cx::new("step", "", true, cx.generation, cx.float), u };
    step.cx.dtype = dtype;
    step.cx.g.origin = cx.g.origin.clone();
    let state_in: Vec<Value> =
        (0..states.len()).map(|i| step.cx.g.input(&format!("state{i}"), state_ty.clone(), Rows::Batched)).collect();
    let sequence_in: Vec<Value> = sequences
        .iter()
        .enumerate()
        .map(|(i, &s)| step.cx.g.input(&format!("x{i}"), inner(cx.g.ty(s)), Rows::Batched))
        .collect();
    let whole_in: Vec<Value> = wholes
        .iter()
        .enumerate()
        .map(|(i, &w)| step.cx.g.input(&format!("w{i}"), cx.g.ty(w).clone(), Rows::Whole))
        .collect();
    let mut next = step.advance(cell, sequence_in[0], &state_in, &whole_in)?;
    let mut output = next[0];
    if let Some(&mask) = sequence_in.get(1) {
        let before = if carries_output {
            *state_in.last().expect("the output is a state")
        } else {
            step.cx.g_zero(dtype, &state_ty.shape)?
        };
        output = step.cx.g.select(mask, output, before)?;
        for (new, &old) in next.iter_mut().zip(&state_in) {
            *new = step.cx.g.select(mask, *new, old)?;
        }
        if carries_output {
            next.push(output);
        }
    }
    // The last output is a state unless masked steps give zeros.
    let stacked = walk.sequences || (mask.is_some() && walk.zero_masked);
    for (i, value) in next.iter().enumerate() {
        step.cx.g.output(&format!("state{i}"), *value);
    }
    if stacked {
        step.cx.g.output("y", output);
    }
    let body = Arc::new(Graph { origin: Default::default(), ..step.cx.g });
    let op = Scan { count: steps, states: states.len(), sequences: sequences.len(), body };
    let operands: Vec<Value> = states.iter().chain(&sequences).chain(&wholes).copied().collect();
    let results = cx.g.push_all(op, &operands)?;
    let y = if walk.sequences {
        cx.g.transpose(results[states.len()], &[1, 0, 2])?
    } else if stacked {
        let last = cx.g.slice_dim(results[states.len()], 0, steps - 1..steps)?;
        cx.g.reshape(last, &state_ty.shape)?
    } else if carries_output {
        results[states.len() - 1]
    } else {
        results[0]
    };
    let mut out = vec![T::from(y)];
    if walk.state {
        out.extend(results[..cell.kind.states()].iter().map(|&s| T::from(s)));
    }
    Ok(out)
}

impl Cx {
    fn g_zero(&mut self, dtype: DType, shape: &Shape) -> Out<Value> {
        Ok(self.g.full(dtype, 0.0, shape)?)
    }
}

/// The body of a scan as it is written.
struct Step {
    cx: Cx,
    u: usize,
}

impl Step {
    fn columns(&mut self, x: Value, stretch: usize) -> Out<Value> {
        Ok(self.cx.g.slice_dim(x, 1, stretch * self.u..(stretch + 1) * self.u)?)
    }

    /// The states after a step; the first is its output.
    fn advance(&mut self, cell: &Cell, x: Value, states: &[Value], wholes: &[Value]) -> Out<Vec<Value>> {
        let h = states[0];
        match cell.kind {
            Kind::Simple => {
                let product = self.cx.g.matmul(h, wholes[0])?;
                let sum = self.cx.g.add(x, product)?;
                Ok(vec![cell.activation.apply(&mut self.cx, sum)?])
            }
            Kind::Lstm => {
                let product = self.cx.g.matmul(h, wholes[0])?;
                let z = self.cx.g.add(x, product)?;
                let parts: [Value; 4] =
                    [self.columns(z, 0)?, self.columns(z, 1)?, self.columns(z, 2)?, self.columns(z, 3)?];
                let i = cell.recurrent.apply(&mut self.cx, parts[0])?;
                let f = cell.recurrent.apply(&mut self.cx, parts[1])?;
                let candidate = cell.activation.apply(&mut self.cx, parts[2])?;
                let o = cell.recurrent.apply(&mut self.cx, parts[3])?;
                let (kept, new) = (self.cx.g.mul(f, states[1])?, self.cx.g.mul(i, candidate)?);
                let c = self.cx.g.add(kept, new)?;
                let shown = cell.activation.apply(&mut self.cx, c)?;
                Ok(vec![self.cx.g.mul(o, shown)?, c])
            }
            Kind::GruAfter => {
                let mut product = self.cx.g.matmul(h, wholes[0])?;
                if let Some(&bias) = wholes.get(1) {
                    product = add_bias(&mut self.cx, product, bias)?;
                }
                let z = self.gate(cell, x, product, 0)?;
                let r = self.gate(cell, x, product, 1)?;
                let (from_x, from_h) = (self.columns(x, 2)?, self.columns(product, 2)?);
                let reset = self.cx.g.mul(r, from_h)?;
                let sum = self.cx.g.add(from_x, reset)?;
                self.mix(cell, z, h, sum)
            }
            Kind::GruBefore => {
                let product = self.cx.g.matmul(h, wholes[0])?;
                let z = self.gate(cell, x, product, 0)?;
                let r = self.gate(cell, x, product, 1)?;
                let reset = self.cx.g.mul(r, h)?;
                let from_h = self.cx.g.matmul(reset, wholes[1])?;
                let from_x = self.columns(x, 2)?;
                let sum = self.cx.g.add(from_x, from_h)?;
                self.mix(cell, z, h, sum)
            }
        }
    }

    fn gate(&mut self, cell: &Cell, x: Value, product: Value, stretch: usize) -> Out<Value> {
        let (a, b) = (self.columns(x, stretch)?, self.columns(product, stretch)?);
        let sum = self.cx.g.add(a, b)?;
        cell.recurrent.apply(&mut self.cx, sum)
    }

    /// z·h + (1 − z)·act(sum).
    fn mix(&mut self, cell: &Cell, z: Value, h: Value, sum: Value) -> Out<Vec<Value>> {
        let candidate = cell.activation.apply(&mut self.cx, sum)?;
        let ty = self.cx.g.ty(z).clone();
        let one = self.cx.g.full(ty.dtype, 1.0, &ty.shape)?;
        let rest = self.cx.g.sub(one, z)?;
        let (kept, new) = (self.cx.g.mul(z, h)?, self.cx.g.mul(rest, candidate)?);
        Ok(vec![self.cx.g.add(kept, new)?])
    }
}

/// A recurrent layer and a copy of it that walks the other way.
pub(super) fn bidirectional(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let merge = match fields.get("merge_mode") {
        None => "concat",
        Some(at) if at.is_null() => "",
        Some(at) => match at.str()? {
            mode @ ("concat" | "sum" | "mul" | "ave") => mode,
            _ => return Err(at.accepted(&["concat", "sum", "mul", "ave", "null"]).into()),
        },
    };
    if fields.opt("backward_layer").is_some_and(|at| !same_but_direction(fields, at.json)) {
        return Err(unsupported("a `backward_layer` of its own"));
    }
    fields.irrelevant(&["return_sequences", "return_state", "stateful", "go_backwards", "zero_output_for_mask"]);
    let inner = b.inner_layer(fields, "layer")?;
    let LayerBody::Leaf(config) = &inner.body else { return Err(unsupported("a model inside Bidirectional")) };
    let flag = |key: &str| config.get(key) == Some(&Json::Bool(true));
    let (sequences, state) = (flag("return_sequences"), flag("return_state"));
    let mut halves = Vec::new();
    let first = inputs.many()?;
    let states: Vec<T> = match inputs.named("initial_state") {
        Some(item) => item.tensors(),
        None => first[1..].to_vec(),
    };
    if !states.len().is_multiple_of(2) {
        return Err(misfit(format!("{} initial states for two directions", states.len())));
    }
    let mask = inputs.tensor(1, "mask")?;
    for (slot, prefix, backwards) in [("forward_layer", "forward", false), ("backward_layer", "backward", true)] {
        let mut half = inner.clone();
        half.name = format!("{prefix}_{}", inner.name);
        half.path = b.cx.below(&half.name);
        if let LayerBody::Leaf(Json::Object(map)) = &mut half.body {
            let way = flag("go_backwards") != backwards;
            map.insert("go_backwards".to_string(), Json::Bool(way));
            if sequences {
                map.insert("zero_output_for_mask".to_string(), Json::Bool(true));
            }
        }
        let middle = states.len() / 2;
        let own = if backwards { &states[middle..] } else { &states[..middle] };
        let mut call = Inputs::single(first[0]);
        if !own.is_empty() {
            call.kwargs.insert("initial_state".to_string(), Item::List(own.iter().map(|t| Item::Tensor(*t)).collect()));
        }
        if let Some(mask) = mask {
            call.kwargs.insert("mask".to_string(), Item::Tensor(mask));
        }
        let owner = b.declare_inner(&half, Slot::Attribute(slot));
        halves.push(b.layer(&half, owner, &call)?);
    }
    let (forward, mut backward) = (halves.remove(0), halves.remove(0));
    let cx = &mut b.cx;
    if sequences {
        backward[0].value = cx.g.push(Reverse { dims: vec![1] }, &[backward[0].value])?;
    }
    let (f, r) = (forward[0], backward[0]);
    let dim = cx.rank(f.value) - 1;
    let value = match merge {
        "concat" => cx.g.push(Concat { dim }, &[f.value, r.value])?,
        "sum" => cx.g.add(f.value, r.value)?,
        "mul" => cx.g.mul(f.value, r.value)?,
        "ave" => {
            let sum = cx.g.add(f.value, r.value)?;
            let ty = cx.g.ty(sum).clone();
            let half = cx.g.full(ty.dtype, 0.5, &ty.shape)?;
            cx.g.mul(sum, half)?
        }
        _ => f.value,
    };
    let mut out = vec![T { value, mask: f.mask }];
    if merge.is_empty() {
        out.push(T { value: r.value, mask: f.mask });
    }
    if state {
        out.extend(&forward[1..]);
        out.extend(&backward[1..]);
    }
    Ok(out)
}

/// Whether the written backward layer is the forward one walking the other way: Keras writes it always.
fn same_but_direction(fields: &Fields<'_>, backward: &Json) -> bool {
    let strip = |json: &Json| -> Option<Json> {
        let mut config = json.get("config")?.clone();
        if let Json::Object(map) = &mut config {
            ["name", "go_backwards", "dtype", "seed"].iter().for_each(|key| drop(map.shift_remove(*key)));
            map.values_mut().for_each(|value| {
                if let Json::Object(inner) = value {
                    inner.shift_remove("shared_object_id");
                }
            });
        }
        Some(config)
    };
    let forward = fields.at().json.get("layer").and_then(strip);
    forward.is_some() && forward == strip(backward)
}

/// A layer applied to every step: steps become rows.
pub(super) fn time_distributed(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    inputs.tensor(1, "mask")?;
    let inner = b.inner_layer(fields, "layer")?;
    let dims = b.cx.dims(x.value);
    let &[n, steps, ..] = dims.as_slice() else {
        return Err(misfit(format!("takes a tensor of rank 3 or more, its input has the shape {dims:?}")));
    };
    let folded: Vec<usize> = [n * steps].into_iter().chain(dims[2..].iter().copied()).collect();
    let rows = b.cx.g.reshape(x.value, &Shape::from(folded))?;
    let owner = b.declare_inner(&inner, Slot::Attribute("layer"));
    let outputs = b.layer(&inner, owner, &Inputs::single(rows.into()))?;
    let mut out = Vec::new();
    for y in outputs {
        let dims = b.cx.dims(y.value);
        let unfolded: Vec<usize> = [n, steps].into_iter().chain(dims[1..].iter().copied()).collect();
        out.push(T { value: b.cx.g.reshape(y.value, &Shape::from(unfolded))?, mask: x.mask });
    }
    Ok(out)
}
