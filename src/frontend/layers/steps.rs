//! Sequences walked step by step: what all recurrent layers have in common.
//!
//! A layer becomes one `scan`. What does not depend on the state (the input's product, of all steps) is computed before it
//! at once. Sequences are `[T, N, ..]` inside.

use std::sync::Arc;

use intwain_ir::ops::{Reverse, Scan};
use intwain_ir::{DType, Graph, Rows, Shape, Type, Value};

use super::build::Builder;
use super::cx::{Cx, Out, T, misfit, unsupported};
use super::inputs::{Inputs, Item};
use super::penalties::Penalties;
use super::phase::Phase;
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::json::Json;

/// One step of a recurrent layer.
pub(super) trait Step {
    /// Extents of the states behind the rows.
    fn states(&self) -> Vec<Vec<usize>>;

    /// Extents of the output behind the rows.
    fn output(&self) -> Vec<usize>;

    /// Which of the states the output is; `None` where it is a value of its own.
    fn output_state(&self) -> Option<usize>;

    /// What every step sees whole.
    fn wholes(&self) -> Vec<Value>;

    /// The output and the states after a step. `x` is the step's part of the input's product, `wholes` what
    /// [`Step::wholes`] gives.
    fn advance(&self, cx: &mut Cx, x: Value, states: &[Value], wholes: &[Value]) -> Out<(Value, Vec<Value>)>;
}

/// How a sequence is walked and what comes out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    backwards: bool,
    sequences: bool,
    state: bool,
    /// Masked steps give zeros and not the output before them.
    zero_masked: bool,
    stateful: bool,
}

impl Walk {
    /// Reads what all recurrent layers have.
    pub(super) fn read(fields: &Fields<'_>) -> Out<Walk> {
        fields.irrelevant(&["unroll", "input_dim", "input_length"]);
        fields.neutral("time_major", &[Json::Bool(false)])?;
        fields.neutral("num_constants", &[Json::Int(0)])?;
        Ok(Walk {
            backwards: fields.bool_or("go_backwards", false)?,
            sequences: fields.bool_or("return_sequences", false)?,
            state: fields.bool_or("return_state", false)?,
            zero_masked: fields.bool_or("zero_output_for_mask", false)?,
            stateful: fields.bool_or("stateful", false)?,
        })
    }

    /// The same where masked steps always repeat the output before them.
    pub(super) fn repeating(self) -> Walk {
        Walk { zero_masked: false, ..self }
    }

    /// Whether all outputs come out and not only the last.
    pub(super) fn sequences(&self) -> bool {
        self.sequences
    }
}

/// What a recurrent layer is called with.
#[derive(Debug)]
pub(super) struct Arguments {
    /// The sequence, in the layer's floating type.
    pub(super) x: Value,
    /// The initial states; none where they are zero or kept from the call before.
    pub(super) initial: Vec<Value>,
    /// `bool[N, T]`, false where a step is to be skipped.
    pub(super) mask: Option<Value>,
    /// The mask that goes on to all outputs.
    passed_on: Option<Value>,
}

impl Arguments {
    /// Reads the arguments of a call: in Keras 3 `(sequences, initial_state, mask, training)`, in Keras 2 `(inputs, mask,
    /// training, initial_state, constants)`, where the states may stand behind the input in one list.
    pub(super) fn read(b: &mut Builder, inputs: &Inputs) -> Out<Arguments> {
        let (initial, mask) = positions(b.cx.generation);
        let given = sequence(inputs)?;
        let x = given[0];
        let initial = match inputs.get(initial, "initial_state") {
            Some(item) => flat(item)?,
            None => given[1..].to_vec(),
        };
        let explicit = inputs.tensor(mask, "mask")?.map(|m| m.value);
        // Keras 3 fills in the mask of the sequence where that is the only tensor, and passes it on anyway.
        let implicit = x.mask.filter(|_| b.cx.generation != Generation::Three || initial.is_empty());
        let (mask, passed_on) = (explicit.or(implicit), explicit.or(x.mask));
        let cx = &mut b.cx;
        let dims = cx.dims(x.value);
        if dims.len() < 3 {
            return Err(misfit(format!("takes a tensor of rank 3 or more, its input has the shape {dims:?}")));
        }
        if let Some(mask) = mask
            && cx.dims(mask) != dims[..2]
        {
            let found = cx.dims(mask);
            return Err(misfit(format!("takes a mask of shape {:?}, the mask has the shape {found:?}", &dims[..2])));
        }
        let mask = mask.map(|m| cx.g.cast(DType::Bool, m)).transpose()?;
        let initial = initial.into_iter().map(|t| cx.floating(t.value)).collect::<Out<Vec<_>>>()?;
        Ok(Arguments { x: cx.floating(x.value)?, initial, mask, passed_on })
    }

    /// Rows and steps of the sequence.
    pub(super) fn extents(&self, cx: &Cx) -> (usize, usize) {
        let dims = cx.g.shape(self.x);
        (dims[0], dims[1])
    }
}

/// Positions of the initial state and of the mask among the arguments.
fn positions(generation: Generation) -> (usize, usize) {
    match generation {
        Generation::One | Generation::Two => (3, 1),
        Generation::Three => (1, 2),
    }
}

/// The tensors of the first argument.
fn sequence(inputs: &Inputs) -> Out {
    let named = inputs.named("sequences").map(Item::tensors);
    named.filter(|t| !t.is_empty()).map_or_else(|| inputs.many(), Ok)
}

/// The tensors of an argument that holds nothing else.
fn flat(item: &Item) -> Out {
    match item {
        Item::Tensor(t) => Ok(vec![*t]),
        Item::List(items) => Ok(items.iter().map(flat).collect::<Out<Vec<_>>>()?.concat()),
        Item::Const(_) | Item::Array { .. } | Item::Dict(_) | Item::Slice(_) | Item::Ellipsis => {
            Err(unsupported("an initial state that is no tensor of the model"))
        }
    }
}

/// What two directions of a layer are called with: the first half of the initial states is the forward one's.
pub(super) fn halves(b: &Builder, inputs: &Inputs) -> Out<[Inputs; 2]> {
    let (initial, mask) = positions(b.cx.generation);
    let given = sequence(inputs)?;
    let states = match inputs.get(initial, "initial_state") {
        Some(item) => flat(item)?,
        None => given[1..].to_vec(),
    };
    if !states.len().is_multiple_of(2) {
        return Err(misfit(format!("{} initial states for two directions", states.len())));
    }
    let mask = inputs.tensor(mask, "mask")?;
    let half = |states: &[T]| {
        let mut call = Inputs::single(given[0]);
        if !states.is_empty() {
            let states = states.iter().map(|t| Item::Tensor(*t)).collect();
            call.kwargs.insert("initial_state".to_string(), Item::List(states));
        }
        if let Some(mask) = mask {
            call.kwargs.insert("mask".to_string(), Item::Tensor(mask));
        }
        call
    };
    let (forward, backward) = states.split_at(states.len() / 2);
    Ok([half(forward), half(backward)])
}

/// The output of a walk, `[N, T, ..]` or `[N, ..]`, and the states behind it.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) y: Value,
    pub(super) states: Vec<Value>,
}

impl Walked {
    /// What the layer gives.
    pub(super) fn results(&self, walk: &Walk, args: &Arguments) -> Vec<T> {
        let mask = args.passed_on.filter(|_| walk.sequences);
        let mut out = vec![T { value: self.y, mask }];
        if walk.state {
            out.extend(self.states.iter().map(|&s| T::from(s)));
        }
        out
    }
}

/// How the outputs come out of the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// The output is this state, in masked steps too.
    State(usize),
    /// The output is a state of the scan of its own, the last.
    Carried,
    /// Nobody asks for the output before.
    Apart,
}

impl Shown {
    fn of(walk: &Walk, step: &impl Step, args: &Arguments) -> Shown {
        let masked = args.mask.is_some();
        // A masked step repeats the output before it, which at the start is 0 whatever the initial state.
        let repeats = masked && !walk.zero_masked;
        let fresh = args.initial.is_empty() && !walk.stateful;
        match step.output_state() {
            Some(i) if !masked || (repeats && fresh) => Shown::State(i),
            Some(_) | None if walk.sequences && !repeats => Shown::Apart,
            Some(_) | None => Shown::Carried,
        }
    }
}

/// Walks a sequence. `xs` is the input's product, `[N, T, ..]`.
pub(super) fn run(b: &mut Builder, walk: &Walk, step: &impl Step, xs: Value, args: &Arguments) -> Out<Walked> {
    let shown = Shown::of(walk, step, args);
    let (n, count) = args.extents(&b.cx);
    let dtype = b.cx.g.ty(xs).dtype;
    let shapes: Vec<Shape> = step.states().iter().map(|s| with_rows(n, s)).collect();
    let kept = if walk.stateful { kept(b, &shapes, dtype)? } else { Vec::new() };
    let cx = &mut b.cx;
    let mut sequences = vec![steps_first(cx, xs)?];
    if let Some(mask) = args.mask {
        sequences.push(steps_first(cx, mask)?);
    }
    if walk.backwards {
        for s in &mut sequences {
            *s = cx.g.push(Reverse { dims: vec![0] }, &[*s])?;
        }
    }
    let mut states = match (args.initial.as_slice(), kept.as_slice()) {
        ([], []) => shapes.iter().map(|s| Ok(cx.g.full(dtype, 0.0, s)?)).collect::<Out<_>>()?,
        ([], kept) => kept.iter().map(|(_, value)| *value).collect(),
        (given, _) => fitting(cx, given, &shapes)?,
    };
    if shown == Shown::Carried {
        states.push(cx.g.full(dtype, 0.0, &with_rows(n, &step.output()))?);
    }
    let operands: Vec<Value> = states.iter().chain(&sequences).copied().chain(step.wholes()).collect();
    let body = Arc::new(body(cx, walk, step, shown, (&states, &sequences))?);
    let op = Scan { count, states: states.len(), sequences: sequences.len(), body };
    let results = cx.g.push_all(op, &operands)?;
    for ((name, _), next) in kept.iter().zip(&results) {
        cx.keep(name, *next);
    }
    let y = match shown {
        _ if walk.sequences => steps_first(cx, results[states.len()])?,
        Shown::State(i) => results[i],
        Shown::Carried | Shown::Apart => results[states.len() - 1],
    };
    Ok(Walked { y, states: results[..shapes.len()].to_vec() })
}

/// The states that a stateful layer keeps, with their names.
fn kept(b: &mut Builder, shapes: &[Shape], dtype: DType) -> Out<Vec<(String, Value)>> {
    b.keeps_rows(shapes.first().map_or(0, |s| s[0]))?;
    let each = shapes.iter().enumerate();
    Ok(each.map(|(i, shape)| b.cx.kept(&format!("state_{i}"), Type::new(dtype, shape.clone()))).collect())
}

/// The given initial states, which must be those of the layer.
fn fitting(cx: &Cx, given: &[Value], shapes: &[Shape]) -> Out<Vec<Value>> {
    if given.len() != shapes.len() {
        return Err(misfit(format!("has {} state(s), {} are given", shapes.len(), given.len())));
    }
    match given.iter().zip(shapes).find(|(g, s)| cx.g.shape(**g) != *s) {
        Some((g, s)) => Err(misfit(format!("has a state of shape {s}, given is {}", cx.g.shape(*g)))),
        None => Ok(given.to_vec()),
    }
}

fn with_rows(n: usize, extents: &[usize]) -> Shape {
    Shape::new(std::iter::once(n).chain(extents.iter().copied()))
}

/// `[N, T, ..]` as `[T, N, ..]`, and the other way round.
fn steps_first(cx: &mut Cx, x: Value) -> Out<Value> {
    let perm: Vec<usize> = [1, 0].into_iter().chain(2..cx.rank(x)).collect();
    Ok(cx.g.transpose(x, &perm)?)
}

/// The graph of one step, for these initial states and sequences.
fn body(cx: &Cx, walk: &Walk, step: &impl Step, shown: Shown, (states, sequences): (&[Value], &[Value])) -> Out<Graph> {
    let mut inner = Cx::new("step", "", true, cx.generation, cx.float, Phase::Inference, Penalties::InTraining);
    inner.dtype = cx.dtype;
    inner.g.origin = cx.g.origin.clone();
    let mut input = |name: String, ty: Type, rows| inner.g.input(&name, ty, rows);
    let position = |ty: &Type| ty.with_shape(Shape::from(&ty.shape[1..]));
    let own = states.iter().enumerate();
    let before: Vec<Value> = own.map(|(i, s)| input(format!("state{i}"), cx.g.ty(*s).clone(), Rows::Batched)).collect();
    let own = sequences.iter().enumerate();
    let now: Vec<Value> = own.map(|(i, s)| input(format!("x{i}"), position(cx.g.ty(*s)), Rows::Batched)).collect();
    let own = step.wholes().into_iter().enumerate();
    let wholes: Vec<Value> = own.map(|(i, w)| input(format!("w{i}"), cx.g.ty(w).clone(), Rows::Whole)).collect();

    let count = step.states().len();
    let (mut output, mut next) = step.advance(&mut inner, now[0], &before[..count], &wholes)?;
    if let Some(&mask) = now.get(1) {
        for (new, &old) in next.iter_mut().zip(&before) {
            *new = held(&mut inner, mask, *new, old)?;
        }
        output = match shown {
            Shown::State(i) => next[i],
            Shown::Carried if !walk.zero_masked => held(&mut inner, mask, output, before[count])?,
            Shown::Carried | Shown::Apart => {
                let ty = inner.g.ty(output).clone();
                let zero = inner.g.full(ty.dtype, 0.0, &ty.shape)?;
                held(&mut inner, mask, output, zero)?
            }
        };
    }
    if shown == Shown::Carried {
        next.push(output);
    }
    for (i, value) in next.iter().enumerate() {
        inner.g.output(&format!("state{i}"), *value);
    }
    if walk.sequences {
        inner.g.output("y", output);
    }
    Ok(Graph { origin: Default::default(), ..inner.g })
}

/// The new value where the step's mask `[N]` is true, else the old one.
fn held(cx: &mut Cx, mask: Value, new: Value, old: Value) -> Out<Value> {
    let shape = cx.g.shape(new).clone();
    let mask = cx.g.broadcast(mask, &shape, &[0])?;
    Ok(cx.g.select(mask, new, old)?)
}
