//! Recurrent layers.
//!
//! A layer becomes one `scan`. What does not depend on the state (x·W + b of all steps) is computed before it in one
//! product. Sequences are `[T, N, ..]` inside.

use std::sync::Arc;

use intwain_ir::ops::{Reverse, Scan};
use intwain_ir::{DType, Graph, Rows, Shape, Type, Value};

use super::build::Builder;
use super::cells::{Cell, Family, Variables};
use super::conv::add_bias;
use super::cx::{Cx, Out, T, misfit, unsupported};
use super::inputs::Inputs;
use super::masks::heeded;
use super::policy::{Policies, Policy};
use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::ImportErrorKind;
use crate::frontend::json::Json;
use crate::frontend::names::nearest;
use crate::frontend::weights::Slot;

pub(super) fn lstm(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    layer(b, fields, inputs, Family::Lstm)
}

pub(super) fn gru(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    layer(b, fields, inputs, Family::Gru)
}

pub(super) fn simple_rnn(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    layer(b, fields, inputs, Family::Simple)
}

/// A cell and where its variables belong.
struct Place {
    cell: Cell,
    slot: Slot,
    class: &'static str,
    name: String,
}

fn layer(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, family: Family) -> Out {
    let (class, name) = family.cell();
    let cell = Cell::read(b, fields, family)?;
    let place = Place { cell, slot: Slot::Attribute("cell"), class, name: name.to_string() };
    walk(b, fields, inputs, vec![place])
}

/// `RNN(cell)`: one cell, or several on top of each other.
pub(super) fn rnn(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let at = fields.require("cell")?;
    fields.irrelevant(&["unroll"]);
    let class = at.require("class_name")?;
    let config = at.require("config")?;
    if class.str()? != "StackedRNNCells" {
        let (place, policy) = place(b, &at, Slot::Attribute("cell"))?;
        b.cx.set_policy(policy);
        return walk(b, fields, inputs, vec![place]);
    }
    let stack = config.fields()?;
    stack.irrelevant(&["trainable", "dtype", "reverse_state_order"]);
    let name = stack.opt("name").map_or(Ok("stacked_rnn_cells"), |n| n.str())?.to_string();
    let cells = stack.require("cells")?.array()?;
    if let Some(unknown) = stack.finish().into_iter().next() {
        return Err(unknown.into());
    }
    let places = cells.iter().map(|cell| place(b, cell, Slot::Listed("cells"))).collect::<Out<Vec<_>>>()?;
    let (places, policies): (Vec<Place>, Vec<Policy>) = places.into_iter().unzip();
    match policies.as_slice() {
        [policy, others @ ..] if others.iter().all(|p| p == policy) => b.cx.set_policy(*policy),
        _ => return Err(unsupported("stacked cells of several dtype policies")),
    }
    let part = b.cx.part(Slot::Attribute("cell"), "StackedRNNCells", &name, true);
    let outer = b.cx.owner();
    walk_in(b, fields, inputs, places, (part, outer))
}

/// Reads a cell by its class.
fn place(b: &Builder, at: &At<'_>, slot: Slot) -> Out<(Place, Policy)> {
    let class = at.require("class_name")?;
    let Some(family) = Family::of_cell(class.str()?) else {
        let known = ["LSTMCell", "GRUCell", "SimpleRNNCell", "StackedRNNCells"];
        let class = class.str()?.to_string();
        let kind = ImportErrorKind::UnknownLayer { nearest: nearest(&class, known).map(str::to_string), class };
        return Err(at.error(kind).into());
    };
    let fields = at.require("config")?.fields()?;
    fields.irrelevant(&["trainable"]);
    let policy = Policies::read(&fields)?;
    let cell = Cell::read(b, &fields, family)?;
    let (class, usual) = family.cell();
    let name = fields.opt("name").map_or(Ok(usual), |n| n.str())?.to_string();
    match fields.finish().into_iter().next() {
        Some(unknown) => Err(unknown.into()),
        None => Ok((Place { cell, slot, class, name }, policy.own())),
    }
}

fn walk(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, places: Vec<Place>) -> Out {
    let owner = b.cx.owner();
    walk_in(b, fields, inputs, places, (owner, owner))
}

/// How the sequence is walked and what comes out.
struct Walk {
    backwards: bool,
    sequences: bool,
    state: bool,
    zero_masked: bool,
}

/// Declares the cells' variables below an owner and builds the scan.
fn walk_in(
    b: &mut Builder,
    fields: &Fields<'_>,
    inputs: &Inputs,
    places: Vec<Place>,
    (below, outer): (usize, usize),
) -> Out {
    fields.irrelevant(&["input_dim", "input_length"]);
    fields.neutral("time_major", &[Json::Bool(false)])?;
    fields.neutral("stateful", &[Json::Bool(false)])?;
    let walk = Walk {
        backwards: fields.bool_or("go_backwards", false)?,
        sequences: fields.bool_or("return_sequences", false)?,
        state: fields.bool_or("return_state", false)?,
        zero_masked: fields.bool_or("zero_output_for_mask", false)?,
    };
    let given = inputs.many()?;
    let x = given[0];
    let initial = match inputs.named("initial_state") {
        Some(item) => item.tensors().iter().map(|t| t.value).collect(),
        None => given[1..].iter().map(|t| t.value).collect::<Vec<_>>(),
    };
    let states: usize = places.iter().map(|p| p.cell.states()).sum();
    if !initial.is_empty() && initial.len() != states {
        return Err(misfit(format!("has {states} state(s), {} are given", initial.len())));
    }
    let mask = heeded(&b.cx, inputs, 2, x);
    let value = b.cx.floating(x.value)?;
    let &[_, _, features] = b.cx.dims(value).as_slice() else {
        return Err(misfit(format!("takes a tensor of rank 3, its input has the shape {:?}", b.cx.dims(value))));
    };
    let mut features = features;
    let mut cells = Vec::new();
    for place in places {
        b.cx.enter(below);
        let part = b.cx.part(place.slot, place.class, &place.name, true);
        b.cx.enter(part);
        let vars = place.cell.declare(&mut b.cx, features);
        b.cx.enter(outer);
        features = place.cell.units;
        cells.push((place.cell, vars?));
    }
    run(&mut b.cx, &cells, &walk, value, mask, &initial)
}

/// Builds the scan and gives the output, then the states where they are asked for.
fn run(cx: &mut Cx, cells: &[(Cell, Variables)], walk: &Walk, x: Value, mask: Option<Value>, initial: &[Value]) -> Out {
    let dims = cx.dims(x);
    let (n, steps) = (dims[0], dims[1]);
    let dtype = cx.g.ty(x).dtype;
    let (first, vars) = &cells[0];
    let mut xs = cx.g.matmul(x, vars.kernel)?;
    if let Some(bias) = vars.input_bias {
        xs = add_bias(cx, xs, bias)?;
    }
    let mut sequences = vec![cx.g.transpose(xs, &[1, 0, 2])?];
    if let Some(mask) = mask {
        let mask = cx.g.cast(DType::Bool, mask)?;
        sequences.push(cx.g.transpose(mask, &[1, 0])?);
    }
    if walk.backwards {
        for s in &mut sequences {
            *s = cx.g.push(Reverse { dims: vec![0] }, &[*s])?;
        }
    }
    let units: Vec<usize> = cells.iter().flat_map(|(c, _)| vec![c.units; c.states()]).collect();
    let width = cells.last().map_or(first.units, |(c, _)| c.units);
    let zeros = |cx: &mut Cx, u: usize| cx.g.full(dtype, 0.0, &Shape::from([n, u]));
    let mut states = initial.to_vec();
    if states.is_empty() {
        states = units.iter().map(|&u| Ok(zeros(cx, u)?)).collect::<Out<_>>()?;
    }
    // A masked step repeats the output before it, which at the start is 0 whatever the initial state.
    let carries_output = mask.is_some() && !walk.zero_masked;
    if carries_output {
        states.push(zeros(cx, width)?);
    }
    // Per cell what its steps see whole: for those above the first also what projects their input.
    let mut wholes = Vec::new();
    for (i, (cell, vars)) in cells.iter().enumerate() {
        let mut own = cell.wholes(cx, vars)?;
        if i > 0 {
            own.push(vars.kernel);
            own.extend(vars.input_bias);
        }
        wholes.push(own);
    }

    let mut step = Cx::new("step", "", true, cx.generation, cx.float);
    step.dtype = dtype;
    step.g.origin = cx.g.origin.clone();
    let mut input = |name: String, ty: Type, rows| step.g.input(&name, ty, rows);
    let state_in: Vec<Value> = states
        .iter()
        .enumerate()
        .map(|(i, &s)| input(format!("state{i}"), cx.g.ty(s).clone(), Rows::Batched))
        .collect();
    let position = |ty: &Type| ty.with_shape(Shape::from(&ty.shape[1..]));
    let sequence_in: Vec<Value> = sequences
        .iter()
        .enumerate()
        .map(|(i, &s)| input(format!("x{i}"), position(cx.g.ty(s)), Rows::Batched))
        .collect();
    let flat: Vec<Value> = wholes.iter().flatten().copied().collect();
    let mut whole_in = flat
        .iter()
        .enumerate()
        .map(|(i, &w)| input(format!("w{i}"), cx.g.ty(w).clone(), Rows::Whole))
        .collect::<Vec<_>>();

    let mut next = Vec::new();
    let mut projected = sequence_in[0];
    let mut at = 0;
    for (i, (cell, vars)) in cells.iter().enumerate() {
        let own: Vec<Value> = whole_in.drain(..wholes[i].len()).collect();
        let mut own = own.as_slice();
        if i > 0 {
            let extra = 1 + usize::from(vars.input_bias.is_some());
            let (kept, projection) = own.split_at(own.len() - extra);
            own = kept;
            projected = step.g.matmul(projected, projection[0])?;
            if let Some(&bias) = projection.get(1) {
                projected = add_bias(&mut step, projected, bias)?;
            }
        }
        let new = cell.advance(&mut step, projected, &state_in[at..at + cell.states()], own)?;
        at += cell.states();
        projected = new[0];
        next.extend(new);
    }
    let mut output = projected;
    if let Some(&mask) = sequence_in.get(1) {
        let before = if carries_output { state_in[at] } else { zeros(&mut step, width)? };
        output = held(&mut step, mask, output, before)?;
        for (new, &old) in next.iter_mut().zip(&state_in) {
            *new = held(&mut step, mask, *new, old)?;
        }
        if carries_output {
            next.push(output);
        }
    }
    // The last output is a state unless masked steps give zeros.
    let stacked = walk.sequences || (mask.is_some() && walk.zero_masked);
    for (i, value) in next.iter().enumerate() {
        step.g.output(&format!("state{i}"), *value);
    }
    if stacked {
        step.g.output("y", output);
    }
    let body = Arc::new(Graph { origin: Default::default(), ..step.g });
    let op = Scan { count: steps, states: states.len(), sequences: sequences.len(), body };
    let operands: Vec<Value> = states.iter().chain(&sequences).chain(&flat).copied().collect();
    let results = cx.g.push_all(op, &operands)?;
    let y = if walk.sequences {
        cx.g.transpose(results[states.len()], &[1, 0, 2])?
    } else if stacked {
        let last = cx.g.slice_dim(results[states.len()], 0, steps - 1..steps)?;
        cx.g.reshape(last, &Shape::from([n, width]))?
    } else if carries_output {
        results[states.len() - 1]
    } else {
        // The first state of the topmost cell.
        results[units.len() - cells.last().map_or(1, |(c, _)| c.states())]
    };
    let mut out = vec![T::from(y)];
    if walk.state {
        out.extend(results[..units.len()].iter().map(|&s| T::from(s)));
    }
    Ok(out)
}

/// The new value where the step's mask `[N]` is true, else the old one.
fn held(cx: &mut Cx, mask: Value, new: Value, old: Value) -> Out<Value> {
    let shape = cx.g.shape(new).clone();
    let mask = cx.g.broadcast(mask, &shape, &[0])?;
    Ok(cx.g.select(mask, new, old)?)
}
