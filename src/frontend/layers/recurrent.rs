//! Recurrent layers with dense cells, and the cells as layers.

use intwain_ir::Value;

use super::build::Builder;
use super::cells::{Cell, Family, Variables};
use super::cx::{Cx, Out, T, misfit, unsupported};
use super::inputs::{Inputs, Item};
use super::policy::{Policies, Policy};
use super::steps::{Arguments, Step, Walk, run};
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

fn layer(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, family: Family) -> Out {
    let (class, name) = family.cell();
    let cell = Cell::read(b, fields, family)?;
    let place = Place { cell, slot: Slot::Attribute("cell"), class, name: name.to_string() };
    walk(b, fields, inputs, Cells { places: vec![place], stack: None })
}

/// An LSTM whose variables are the layer's own.
pub(super) fn cudnn_lstm(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    cudnn(b, fields, inputs, Family::Lstm)
}

/// A GRU with the reset gate behind the product, whose variables are the layer's own.
pub(super) fn cudnn_gru(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    cudnn(b, fields, inputs, Family::Gru)
}

fn cudnn(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, family: Family) -> Out {
    let cell = Cell::read_cudnn(fields, family)?;
    let walk = Walk::read(fields)?;
    let args = Arguments::read(b, inputs)?;
    if args.mask.is_some() {
        return Err(misfit("takes no mask, as CuDNN does not"));
    }
    let features = features(&b.cx, args.x)?;
    let (rows, _) = args.extents(&b.cx);
    let vars = cell.declare(&mut b.cx, (rows, features))?;
    let stack = Stack::new(&mut b.cx, vec![(cell, vars)])?;
    stack.walk(b, &walk, &args)
}

/// `RNN(cell)`: one cell, or several on top of each other.
pub(super) fn rnn(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let at = fields.require("cell")?;
    let cells = match at.require("class_name")?.str()? {
        "StackedRNNCells" => stacked(b, &at.require("config")?.fields()?, Beside::Nothing)?,
        _ => {
            let (place, policy) = place(b, &at, Slot::Attribute("cell"))?;
            b.cx.set_policy(policy);
            Cells { places: vec![place], stack: None }
        }
    };
    walk(b, fields, inputs, cells)
}

/// A cell and where its variables belong.
struct Place {
    cell: Cell,
    slot: Slot,
    class: &'static str,
    name: String,
}

/// The cells of a layer, the lowest first.
struct Cells {
    places: Vec<Place>,
    /// The name of the stack that they are parts of.
    stack: Option<String>,
}

/// Which keys of a stack were read by somebody else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Those that every layer has.
    Layer,
}

/// Reads the cells of a `StackedRNNCells`.
fn stacked(b: &mut Builder, fields: &Fields<'_>, beside: Beside) -> Out<Cells> {
    fields.irrelevant(&["trainable", "dtype"]);
    fields.neutral("reverse_state_order", &[Json::Bool(false)])?;
    let name = fields.opt("name").map_or(Ok("stacked_rnn_cells"), |n| n.str())?.to_string();
    let list = fields.require("cells")?;
    let cells = list.array()?;
    if beside == Beside::Nothing
        && let Some(unknown) = fields.finish().into_iter().next()
    {
        return Err(unknown.into());
    }
    if cells.is_empty() {
        return Err(list.expected("at least one cell").into());
    }
    let places = cells.iter().map(|cell| place(b, cell, Slot::Listed("cells"))).collect::<Out<Vec<_>>>()?;
    let (places, policies): (Vec<Place>, Vec<Policy>) = places.into_iter().unzip();
    match policies.as_slice() {
        [policy, others @ ..] if others.iter().all(|p| p == policy) => b.cx.set_policy(*policy),
        _ => return Err(unsupported("stacked cells of several dtype policies")),
    }
    Ok(Cells { places, stack: Some(name) })
}

/// Reads a cell by its class.
fn place(b: &Builder, at: &At<'_>, slot: Slot) -> Out<(Place, Policy)> {
    let class = at.require("class_name")?;
    let module = at.get("module").and_then(|m| m.json.as_str());
    let Some(family) = Family::of_cell(class.str()?, module) else {
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

impl Cells {
    /// Declares the cells' variables below the current owner.
    fn declare(self, cx: &mut Cx, (rows, mut features): (usize, usize)) -> Out<Stack> {
        let outer = cx.owner();
        let below = match &self.stack {
            Some(name) => cx.part(Slot::Attribute("cell"), "StackedRNNCells", name, true),
            None => outer,
        };
        let mut cells = Vec::new();
        for place in self.places {
            cx.enter(below);
            let part = cx.part(place.slot, place.class, &place.name, true);
            cx.enter(part);
            let vars = place.cell.declare(cx, (rows, features));
            cx.enter(outer);
            features = place.cell.units;
            cells.push((place.cell, vars?));
        }
        Stack::new(cx, cells)
    }
}

/// Extents of a step's input behind the rows, of which there must be one.
fn features(cx: &Cx, x: Value) -> Out<usize> {
    match cx.dims(x).as_slice() {
        &[_, _, features] => Ok(features),
        dims => Err(misfit(format!("takes a tensor of rank 3, its input has the shape {dims:?}"))),
    }
}

fn walk(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, cells: Cells) -> Out {
    let walk = Walk::read(fields)?;
    let args = Arguments::read(b, inputs)?;
    let features = features(&b.cx, args.x)?;
    let (rows, _) = args.extents(&b.cx);
    let stack = cells.declare(&mut b.cx, (rows, features))?;
    stack.walk(b, &walk, &args)
}

/// Cells on top of each other: each takes the output of the one below.
struct Stack {
    cells: Vec<(Cell, Variables)>,
    /// What a cell's steps see whole; for those above the first also what projects their input.
    wholes: Vec<Vec<Value>>,
}

impl Stack {
    fn new(cx: &mut Cx, cells: Vec<(Cell, Variables)>) -> Out<Stack> {
        let mut wholes = Vec::new();
        for (i, (cell, vars)) in cells.iter().enumerate() {
            let mut own = cell.wholes(cx, vars)?;
            if i > 0 {
                own.extend(vars.projection.values());
            }
            wholes.push(own);
        }
        Ok(Stack { cells, wholes })
    }

    /// The product of the lowest cell's input.
    fn project(&self, cx: &mut Cx, x: Value) -> Out<Value> {
        self.cells[0].1.projection.apply(cx, x)
    }

    fn walk(&self, b: &mut Builder, walk: &Walk, args: &Arguments) -> Out {
        let xs = self.project(&mut b.cx, args.x)?;
        Ok(run(b, walk, self, xs, args)?.results(walk, args))
    }

    fn top(&self) -> &Cell {
        &self.cells.last().expect("a stack has a cell").0
    }
}

impl Step for Stack {
    fn states(&self) -> Vec<Vec<usize>> {
        self.cells.iter().flat_map(|(c, _)| vec![vec![c.units]; c.states()]).collect()
    }

    fn output(&self) -> Vec<usize> {
        vec![self.top().units]
    }

    fn output_state(&self) -> Option<usize> {
        let states: usize = self.cells.iter().map(|(c, _)| c.states()).sum();
        self.top().shows_state().then(|| states - self.top().states())
    }

    fn wholes(&self) -> Vec<Value> {
        self.wholes.concat()
    }

    fn advance(&self, cx: &mut Cx, x: Value, states: &[Value], wholes: &[Value]) -> Out<(Value, Vec<Value>)> {
        let (mut output, mut next) = (x, Vec::new());
        let (mut states, mut wholes) = (states, wholes);
        for (i, (cell, vars)) in self.cells.iter().enumerate() {
            let (own, others) = wholes.split_at(self.wholes[i].len());
            let (before, above) = states.split_at(cell.states());
            (wholes, states) = (others, above);
            let projection = if i > 0 { vars.projection.values().len() } else { 0 };
            let (own, projection) = own.split_at(own.len() - projection);
            let projected = if i > 0 { vars.projection.among(projection).apply(cx, output)? } else { output };
            let (shown, new) = cell.advance(cx, vars, projected, before, own)?;
            output = shown;
            next.extend(new);
        }
        Ok((output, next))
    }
}

pub(super) fn lstm_cell(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    cell(b, fields, inputs, Family::Lstm)
}

pub(super) fn gru_cell(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    cell(b, fields, inputs, Family::Gru)
}

pub(super) fn simple_rnn_cell(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    cell(b, fields, inputs, Family::Simple)
}

/// A cell called as a layer: one step, from an input and the states before it to the output and the states behind it.
fn cell(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, family: Family) -> Out {
    let cell = Cell::read(b, fields, family)?;
    one_step(b, inputs, |cx, extents| {
        let vars = cell.declare(cx, extents)?;
        Stack::new(cx, vec![(cell, vars)])
    })
}

/// Cells on top of each other, called as a layer.
pub(super) fn stacked_cells(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let cells = Cells { stack: None, ..stacked(b, fields, Beside::Layer)? };
    one_step(b, inputs, |cx, extents| cells.declare(cx, extents))
}

fn one_step(b: &mut Builder, inputs: &Inputs, declare: impl FnOnce(&mut Cx, (usize, usize)) -> Out<Stack>) -> Out {
    let x = inputs.one()?;
    let states = inputs.get(1, "states").map(Item::tensors).unwrap_or_default();
    let cx = &mut b.cx;
    let x = cx.floating(x.value)?;
    let &[rows, features] = cx.dims(x).as_slice() else {
        return Err(misfit(format!("takes a tensor of rank 2, its input has the shape {:?}", cx.dims(x))));
    };
    let states = states.iter().map(|s| cx.floating(s.value)).collect::<Out<Vec<_>>>()?;
    let stack = declare(cx, (rows, features))?;
    let want: Vec<Vec<usize>> = stack.states().iter().map(|s| [&[rows], s.as_slice()].concat()).collect();
    let found: Vec<Vec<usize>> = states.iter().map(|s| cx.dims(*s)).collect();
    if want != found {
        return Err(misfit(format!("has states of the shapes {want:?}, given are {found:?}")));
    }
    let projected = stack.project(cx, x)?;
    let (output, next) = stack.advance(cx, projected, &states, &stack.wholes())?;
    Ok(std::iter::once(output).chain(next).map(T::from).collect())
}
