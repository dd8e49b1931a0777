//! What an operation is called with: tensors beside numbers, and attributes, which Keras 3 writes into the configuration and
//! TensorFlow into the call.

use intwain_ir::ops::{Concat, Constant};
use intwain_ir::scalar::Scalar;
use intwain_ir::{DType, Shape, Value};

use super::known::known;
use super::types::{Kind, promoted};
use crate::frontend::cursor::Fields;
use crate::frontend::json::Json;
use crate::frontend::layers::build::{Builder, element};
use crate::frontend::layers::cx::{Cx, Out, T, misfit, unsupported};
use crate::frontend::layers::inputs::{Inputs, Item};

/// One call of an operation.
pub(in crate::frontend::layers) struct Call<'a> {
    pub(in crate::frontend::layers) cx: &'a mut Cx,
    fields: &'a Fields<'a>,
    pub(in crate::frontend::layers) inputs: &'a Inputs,
}

/// What an operation gives.
pub(in crate::frontend::layers) trait Results {
    /// As tensors.
    fn tensors(self) -> Vec<T>;
}

impl Results for Value {
    fn tensors(self) -> Vec<T> {
        vec![self.into()]
    }
}

impl Results for Vec<Value> {
    fn tensors(self) -> Vec<T> {
        self.into_iter().map(T::from).collect()
    }
}

/// Runs an operation's function on the arguments of a call.
pub(super) fn run<R: Results>(
    b: &mut Builder,
    fields: &Fields<'_>,
    inputs: &Inputs,
    function: impl FnOnce(&mut Call<'_>) -> Out<R>,
) -> Out {
    let mut call = Call { cx: &mut b.cx, fields, inputs };
    Ok(function(&mut call)?.tensors())
}

/// Import functions: a name, and what is made of a call.
macro_rules! operations {
    ($($name:ident = |$c:ident| $body:expr;)+) => {
        $(pub(in crate::frontend::layers) fn $name(
            b: &mut crate::frontend::layers::build::Builder,
            fields: &crate::frontend::cursor::Fields<'_>,
            inputs: &crate::frontend::layers::inputs::Inputs,
        ) -> crate::frontend::layers::cx::Out {
            $crate::frontend::layers::ops::args::run(b, fields, inputs, |$c| $body)
        })+
    };
}
pub(super) use operations;

/// An operand: of a type of its own, or a number that takes the type of what it meets.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    Tensor(Value),
    Number(Json),
}

impl Call<'_> {
    /// The operand with this position and name, if given.
    pub(super) fn maybe_operand(&mut self, position: usize, name: &str) -> Out<Option<Operand>> {
        let item = self.inputs.get(position, name).cloned();
        item.map(|item| self.operand_of(&item, name)).transpose()
    }

    /// The operand with this position and name.
    pub(super) fn operand(&mut self, position: usize, name: &str) -> Out<Operand> {
        self.maybe_operand(position, name)?.ok_or_else(|| misfit(format!("is called without `{name}`")))
    }

    fn operand_of(&mut self, item: &Item, name: &str) -> Out<Operand> {
        match item {
            Item::Tensor(t) => Ok(Operand::Tensor(t.value)),
            Item::Const(json) => Ok(Operand::Number(json.clone())),
            Item::Array { value, dtype } => {
                let dtype = self.element(dtype)?;
                Ok(Operand::Tensor(constant(self.cx, value, dtype)?))
            }
            // A list of numbers and tensors is stacked, as TensorFlow does.
            Item::List(items) => {
                let parts = items.iter().map(|i| self.operand_of(i, name)).collect::<Out<Vec<_>>>()?;
                let values = self.values(&parts)?;
                Ok(Operand::Tensor(stacked(self.cx, &values, 0)?))
            }
            Item::Dict(_) | Item::Slice(_) | Item::Ellipsis => {
                Err(unsupported(format!("an argument `{name}` that is neither tensor nor number")))
            }
        }
    }

    /// A tensor alone: numbers have the type that Python's have.
    pub(super) fn tensor(&mut self, position: usize, name: &str) -> Out<Value> {
        let operand = self.operand(position, name)?;
        self.alone(&operand)
    }

    /// A tensor alone, if given.
    pub(super) fn maybe_tensor(&mut self, position: usize, name: &str) -> Out<Option<Value>> {
        let operand = self.maybe_operand(position, name)?;
        operand.map(|o| self.alone(&o)).transpose()
    }

    fn alone(&mut self, operand: &Operand) -> Out<Value> {
        match operand {
            Operand::Tensor(v) => Ok(*v),
            Operand::Number(json) => {
                let dtype = match Kind::of(json)? {
                    Kind::Bool => DType::Bool,
                    Kind::Int => DType::I32,
                    Kind::Float => self.float(),
                };
                constant(self.cx, json, dtype)
            }
        }
    }

    /// A tensor alone, in a floating type.
    pub(super) fn floating(&mut self, position: usize, name: &str) -> Out<Value> {
        let x = self.tensor(position, name)?;
        self.floated(x)
    }

    /// Integers as the default floating type.
    pub(super) fn floated(&mut self, x: Value) -> Out<Value> {
        if self.cx.g.ty(x).dtype.is_float() { Ok(x) } else { Ok(self.cx.g.cast(self.float(), x)?) }
    }

    /// The default floating type.
    pub(super) fn float(&self) -> DType {
        self.cx.float.unwrap_or(DType::F32)
    }

    /// The operands in their common type: that of the tensors, which numbers follow as far as they are of its kind.
    pub(super) fn values(&mut self, operands: &[Operand]) -> Out<Vec<Value>> {
        let strong = operands.iter().filter_map(|o| match o {
            Operand::Tensor(v) => Some(self.cx.g.ty(*v).dtype),
            Operand::Number(_) => None,
        });
        let mut dtype = strong.reduce(promoted);
        for operand in operands {
            if let Operand::Number(json) = operand {
                let kind = Kind::of(json)?;
                dtype = Some(kind.beside(dtype, self.float()));
            }
        }
        let dtype = dtype.unwrap_or(self.float());
        operands.iter().map(|o| self.typed(o, dtype)).collect()
    }

    /// An operand in a type.
    pub(super) fn typed(&mut self, operand: &Operand, dtype: DType) -> Out<Value> {
        match operand {
            Operand::Tensor(v) => Ok(self.cx.g.cast(dtype, *v)?),
            Operand::Number(json) => constant(self.cx, json, dtype),
        }
    }

    /// Two operands in their common type.
    pub(super) fn pair(&mut self) -> Out<(Value, Value)> {
        self.pair_of("x1", "x2")
    }

    /// Two operands of these names in their common type.
    pub(super) fn pair_of(&mut self, first: &str, second: &str) -> Out<(Value, Value)> {
        let operands = [self.operand(0, first)?, self.operand(1, second)?];
        let values = self.values(&operands)?;
        Ok((values[0], values[1]))
    }

    /// Two operands in their common floating type.
    pub(super) fn float_pair(&mut self) -> Out<(Value, Value)> {
        let (x, y) = self.pair()?;
        Ok((self.floated(x)?, self.floated(y)?))
    }

    /// The tensors of a list in their common type.
    pub(super) fn many(&mut self, name: &str) -> Out<Vec<Value>> {
        self.many_at(0, name)
    }

    /// The tensors of a list argument in their common type.
    pub(super) fn many_at(&mut self, position: usize, name: &str) -> Out<Vec<Value>> {
        let operands = self.operands_at(position, name)?;
        match operands.is_empty() {
            true => Err(misfit("is called without a tensor")),
            false => self.values(&operands),
        }
    }

    /// The operands of a list argument.
    pub(super) fn operands_at(&mut self, position: usize, name: &str) -> Out<Vec<Operand>> {
        let item = self.inputs.get(position, name).cloned();
        match item.ok_or_else(|| misfit(format!("is called without `{name}`")))? {
            Item::List(items) => items.iter().map(|i| self.operand_of(i, name)).collect(),
            Item::Const(Json::Array(items)) => Ok(items.iter().cloned().map(Operand::Number).collect()),
            other => Ok(vec![self.operand_of(&other, name)?]),
        }
    }

    /// A Keras dtype, with the floating type that was asked for.
    pub(super) fn element(&self, name: &str) -> Out<DType> {
        let name = name.strip_prefix("tf.").unwrap_or(name);
        let dtype = element(name).ok_or_else(|| unsupported(format!("the type `{name}`")))?;
        Ok(if dtype.is_float() { self.cx.float.unwrap_or(dtype) } else { dtype })
    }

    /// An attribute as it stands: `None` where it is not there, null where it says so.
    pub(super) fn written(&mut self, key: &str) -> Out<Option<Json>> {
        let configured = self.fields.get(key).map(|at| at.json.clone());
        let null = self.inputs.kwargs.get(key).is_some_and(|item| matches!(item, Item::Const(Json::Null)));
        match self.inputs.named(key).cloned() {
            Some(item) => Ok(Some(self.json(&item, key)?)),
            None if null => Ok(Some(Json::Null)),
            None => Ok(configured),
        }
    }

    /// The value of an argument that is known without running the model.
    fn json(&mut self, item: &Item, key: &str) -> Out<Json> {
        let open = || unsupported(format!("an argument `{key}` that depends on the model's inputs"));
        match item {
            Item::Const(json) => Ok(json.clone()),
            Item::Array { value, .. } => Ok(value.clone()),
            Item::Tensor(t) => known(self.cx, t.value).ok_or_else(open),
            Item::List(items) => Ok(Json::Array(items.iter().map(|i| self.json(i, key)).collect::<Out<Vec<_>>>()?)),
            Item::Dict(_) | Item::Slice(_) | Item::Ellipsis => {
                Err(unsupported(format!("an argument `{key}` of this form")))
            }
        }
    }

    /// An attribute, `None` where it is absent or null.
    pub(super) fn attr(&mut self, key: &str) -> Out<Option<Json>> {
        Ok(self.written(key)?.filter(|json| *json != Json::Null))
    }

    /// A tensor argument that has to be known without running the model.
    pub(super) fn constant_at(&mut self, position: usize, name: &str) -> Out<Option<Json>> {
        let item = self.inputs.get(position, name).cloned();
        item.map(|item| self.json(&item, name)).transpose()
    }

    /// An integer attribute.
    pub(super) fn int(&mut self, key: &str) -> Out<Option<i64>> {
        self.attr(key)?.map(|json| integer(&json)).transpose()
    }

    /// A count or size.
    pub(super) fn count(&mut self, key: &str) -> Out<Option<usize>> {
        let negative = |_| misfit(format!("`{key}` is negative"));
        self.int(key)?.map(|n| usize::try_from(n).map_err(negative)).transpose()
    }

    /// One integer or several.
    pub(super) fn ints(&mut self, key: &str) -> Out<Option<Vec<i64>>> {
        self.attr(key)?.map(|json| integers(&json)).transpose()
    }

    /// A number.
    pub(super) fn number(&mut self, key: &str) -> Out<Option<f64>> {
        let one = |json: Json| number(&json).ok_or_else(|| misfit(format!("`{key}` is {json}, not a number")));
        self.attr(key)?.map(one).transpose()
    }

    /// A truth value, false where it is not given.
    pub(super) fn flag(&mut self, key: &str) -> Out<bool> {
        match self.attr(key)? {
            None => Ok(false),
            Some(Json::Bool(b)) => Ok(b),
            Some(Json::Int(i)) => Ok(i != 0),
            Some(other) => Err(misfit(format!("`{key}` is {other}, not a truth value"))),
        }
    }

    /// A word.
    pub(super) fn text(&mut self, key: &str) -> Out<Option<String>> {
        match self.attr(key)? {
            None => Ok(None),
            Some(Json::String(s)) => Ok(Some(s)),
            Some(other) => Err(misfit(format!("`{key}` is {other}, not a string"))),
        }
    }

    /// An element type.
    pub(super) fn dtype(&mut self, key: &str) -> Out<Option<DType>> {
        let name = self.text(key)?;
        name.map(|name| self.element(&name)).transpose()
    }

    /// The dimensions that an axis or several name; `None` for null.
    pub(super) fn dims(&mut self, key: &str, rank: usize) -> Out<Option<Vec<usize>>> {
        let axes = self.ints(key)?;
        axes.map(|axes| axes.iter().map(|&a| self.cx.axis(a, rank)).collect()).transpose()
    }

    /// The dimension an axis names: where it is absent the default, where it is null none.
    pub(super) fn dim_or(&mut self, key: &str, default: i64, rank: usize) -> Out<Option<usize>> {
        match self.written(key)? {
            None => Ok(Some(self.cx.axis(default, rank)?)),
            Some(Json::Null) => Ok(None),
            Some(json) => Ok(Some(self.cx.axis(integer(&json)?, rank)?)),
        }
    }

    /// Whether arguments stand as Keras 3 writes them, rather than under names.
    pub(super) fn positional(&self) -> bool {
        !self.inputs.args.is_empty()
    }

    /// Marks arguments that cannot alter results.
    pub(super) fn irrelevant(&mut self, keys: &[&str]) {
        self.fields.irrelevant(keys);
        for key in keys {
            self.inputs.named(key);
        }
    }

    /// Refuses an argument that would alter results.
    pub(super) fn neutral(&mut self, key: &str, values: &[Json]) -> Out<()> {
        match self.attr(key)? {
            Some(json) if !values.contains(&json) => Err(unsupported(format!("`{key}` = {json}"))),
            Some(_) | None => Ok(()),
        }
    }

    /// A number of the type and shape of a tensor.
    pub(super) fn like(&mut self, x: Value, number: f64) -> Out<Value> {
        let ty = self.cx.g.ty(x).clone();
        Ok(self.cx.g.full(ty.dtype, number, &ty.shape)?)
    }
}

/// Tensors of one shape along a new dimension.
pub(super) fn stacked(cx: &mut Cx, values: &[Value], axis: i64) -> Out<Value> {
    let mut shape = cx.dims(values[0]);
    let dim = cx.axis(axis, shape.len() + 1)?;
    shape.insert(dim, 1);
    let shape = Shape::from(shape);
    let wide = values.iter().map(|&v| Ok(cx.g.reshape(v, &shape)?)).collect::<Out<Vec<_>>>()?;
    Ok(cx.g.push(Concat { dim }, &wide)?)
}

/// An integer.
pub(super) fn integer(json: &Json) -> Out<i64> {
    json.as_int().ok_or_else(|| misfit(format!("{json} is no integer")))
}

/// One integer or several.
pub(super) fn integers(json: &Json) -> Out<Vec<i64>> {
    match json {
        Json::Array(items) => items.iter().map(integer).collect(),
        _ => Ok(vec![integer(json)?]),
    }
}

/// A number.
pub(super) fn number(json: &Json) -> Option<f64> {
    match json {
        Json::Int(i) => Some(*i as f64),
        Json::Float(x) => Some(*x),
        Json::Bool(b) => Some(f64::from(u8::from(*b))),
        Json::Null | Json::String(_) | Json::Array(_) | Json::Object(_) => None,
    }
}

/// Elements of one constant of the graph; longer tables are put together from pieces.
const PIECE: usize = 512;
/// Elements of tables that a file may hold beside its weights.
const MOST: usize = 1 << 16;

/// A number or nested lists of numbers as a tensor.
pub(in crate::frontend::layers) fn constant(cx: &mut Cx, json: &Json, dtype: DType) -> Out<Value> {
    let (mut shape, mut values) = (Vec::new(), Vec::new());
    collect(json, dtype, 0, &mut shape, &mut values)?;
    if values.len() != shape.iter().product::<usize>() {
        return Err(misfit("lists of several lengths"));
    }
    table(cx, &values, dtype, &Shape::from(shape))
}

/// Elements in row-major order as a tensor.
pub(super) fn table(cx: &mut Cx, values: &[Scalar], dtype: DType, shape: &Shape) -> Out<Value> {
    if values.len() > MOST {
        return Err(unsupported(format!("a table of {} elements in the call of an operation", values.len())));
    }
    let Some(&first) = values.first() else {
        let none = vec![Scalar::zero(dtype)];
        return Ok(cx.g.push(Constant { shape: shape.clone(), elements: none }, &[])?);
    };
    if values.iter().all(|v| *v == first) {
        return Ok(cx.g.push(Constant { shape: shape.clone(), elements: vec![first] }, &[])?);
    }
    let mut pieces = Vec::new();
    for piece in values.chunks(PIECE) {
        let op = Constant { shape: Shape::from([piece.len()]), elements: piece.to_vec() };
        pieces.push(cx.g.push(op, &[])?);
    }
    let flat = joined(cx, &pieces, 0)?;
    Ok(cx.g.reshape(flat, shape)?)
}

/// Tensors one after another; many are joined in groups, so that no element has a long chain of choices.
pub(super) fn joined(cx: &mut Cx, values: &[Value], dim: usize) -> Out<Value> {
    const GROUP: usize = 16;
    let mut level = values.to_vec();
    while level.len() > GROUP {
        let groups = level.chunks(GROUP).map(|g| Ok(cx.g.push(Concat { dim }, g)?)).collect::<Out<Vec<_>>>()?;
        level = groups;
    }
    match level.as_slice() {
        [only] => Ok(*only),
        several => Ok(cx.g.push(Concat { dim }, several)?),
    }
}

fn collect(json: &Json, dtype: DType, depth: usize, shape: &mut Vec<usize>, values: &mut Vec<Scalar>) -> Out<()> {
    match json {
        Json::Int(i) if !dtype.is_float() && dtype != DType::Bool => values.push(Scalar::from_i64(dtype, *i)),
        Json::Int(_) | Json::Float(_) | Json::Bool(_) => {
            values.push(Scalar::from_f64(dtype, number(json).unwrap_or_default()));
        }
        Json::Array(items) => {
            if shape.len() == depth {
                shape.push(items.len());
            }
            items.iter().try_for_each(|item| collect(item, dtype, depth + 1, shape, values))?;
        }
        Json::Null | Json::String(_) | Json::Object(_) => return Err(unsupported(format!("the operand {json}"))),
    }
    Ok(())
}
