//! The arithmetic of recurrent cells.

use intwain_ir::{Shape, Trainable, Value};

use super::activations::{Activation, initializer};
use super::build::Builder;
use super::conv::add_bias;
use super::cx::{Cx, Out};
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::init::Initializer;

/// The arithmetic of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lstm,
    /// The reset gate is applied to the state's product.
    GruAfter,
    /// The reset gate is applied to the state.
    GruBefore,
    Simple,
}

/// The classes of cells, as Keras names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Lstm,
    Gru,
    Simple,
}

impl Family {
    /// The family of a cell class.
    pub(super) fn of_cell(class: &str) -> Option<Family> {
        Some(match class {
            "LSTMCell" => Family::Lstm,
            "GRUCell" => Family::Gru,
            "SimpleRNNCell" => Family::Simple,
            _ => return None,
        })
    }

    /// The class and the name that a layer of the family gives its cell.
    pub(super) fn cell(self) -> (&'static str, &'static str) {
        match self {
            Family::Lstm => ("LSTMCell", "lstm_cell"),
            Family::Gru => ("GRUCell", "gru_cell"),
            Family::Simple => ("SimpleRNNCell", "simple_rnn_cell"),
        }
    }
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

/// A cell without its variables.
pub(super) struct Cell {
    kind: Kind,
    pub(super) units: usize,
    activation: Activation,
    recurrent: Activation,
    use_bias: bool,
    kernel_init: Initializer,
    recurrent_init: Initializer,
    bias_init: Initializer,
}

/// A cell's variables, as they are used.
pub(super) struct Variables {
    /// Contracted with the input.
    pub(super) kernel: Value,
    /// Added to the projected input.
    pub(super) input_bias: Option<Value>,
    recurrent: Value,
    state_bias: Option<Value>,
}

impl Cell {
    /// Reads the part of a configuration that layers and cells share.
    pub(super) fn read(b: &Builder, fields: &Fields<'_>, family: Family) -> Out<Cell> {
        fields.irrelevant(&NEUTRAL);
        let kind = match family {
            Family::Lstm => Kind::Lstm,
            Family::Simple => Kind::Simple,
            Family::Gru if fields.bool_or("reset_after", b.cx.generation == Generation::Three)? => Kind::GruAfter,
            Family::Gru => Kind::GruBefore,
        };
        let units = fields.require("units")?.positive()?;
        let recurrent = match kind {
            Kind::Simple => Activation::Linear,
            Kind::Lstm | Kind::GruAfter | Kind::GruBefore => {
                Activation::read(&b.cx, fields, "recurrent_activation", Activation::Sigmoid)?
            }
        };
        let unit_forget = kind == Kind::Lstm && fields.bool_or("unit_forget_bias", true)?;
        let mut bias_init = initializer(fields, "bias_initializer", Initializer::ZEROS)?;
        if unit_forget && bias_init == Initializer::ZEROS {
            bias_init = Initializer::Stretches(vec![(units, 0.0), (units, 1.0), (2 * units, 0.0)]);
        }
        Ok(Cell {
            kind,
            units,
            activation: Activation::read(&b.cx, fields, "activation", Activation::Tanh)?,
            recurrent,
            use_bias: fields.bool_or("use_bias", true)?,
            kernel_init: initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?,
            recurrent_init: initializer(fields, "recurrent_initializer", Initializer::Orthogonal { gain: 1.0 })?,
            bias_init,
        })
    }

    /// Number of states, each `[N, units]`.
    pub(super) fn states(&self) -> usize {
        match self.kind {
            Kind::Lstm => 2,
            Kind::GruAfter | Kind::GruBefore | Kind::Simple => 1,
        }
    }

    /// Declares the variables of the current owner.
    pub(super) fn declare(&self, cx: &mut Cx, features: usize) -> Out<Variables> {
        let (u, columns) = (self.units, self.units * self.kind.gates());
        let kernel = cx.var("kernel", &[features, columns], self.kernel_init.clone(), Trainable::Yes)?;
        let recurrent = cx.var("recurrent_kernel", &[u, columns], self.recurrent_init.clone(), Trainable::Yes)?;
        if !self.use_bias {
            return Ok(Variables { kernel, recurrent, input_bias: None, state_bias: None });
        }
        if self.kind != Kind::GruAfter {
            let bias = cx.var("bias", &[columns], self.bias_init.clone(), Trainable::Yes)?;
            return Ok(Variables { kernel, recurrent, input_bias: Some(bias), state_bias: None });
        }
        // Row 0 is added to the input's product, row 1 to the state's.
        let bias = cx.var("bias", &[2, columns], self.bias_init.clone(), Trainable::Yes)?;
        let mut row = |r: usize| -> Out<Value> {
            let row = cx.g.slice_dim(bias, 0, r..r + 1)?;
            Ok(cx.g.reshape(row, &Shape::from([columns]))?)
        };
        Ok(Variables { kernel, recurrent, input_bias: Some(row(0)?), state_bias: Some(row(1)?) })
    }

    /// What every step sees whole.
    pub(super) fn wholes(&self, cx: &mut Cx, vars: &Variables) -> Out<Vec<Value>> {
        let u = self.units;
        Ok(match self.kind {
            Kind::GruBefore => {
                vec![cx.g.slice_dim(vars.recurrent, 1, 0..2 * u)?, cx.g.slice_dim(vars.recurrent, 1, 2 * u..3 * u)?]
            }
            Kind::Lstm | Kind::GruAfter | Kind::Simple => [vars.recurrent].into_iter().chain(vars.state_bias).collect(),
        })
    }
}

impl Cell {
    fn columns(&self, cx: &mut Cx, x: Value, stretch: usize) -> Out<Value> {
        Ok(cx.g.slice_dim(x, 1, stretch * self.units..(stretch + 1) * self.units)?)
    }

    /// The states after a step; the first is its output. `x` is the input's projection, `wholes` what
    /// [`Cell::wholes`] gives.
    pub(super) fn advance(&self, cx: &mut Cx, x: Value, states: &[Value], wholes: &[Value]) -> Out<Vec<Value>> {
        let h = states[0];
        match self.kind {
            Kind::Simple => {
                let product = cx.g.matmul(h, wholes[0])?;
                let sum = cx.g.add(x, product)?;
                Ok(vec![self.activation.apply(cx, sum)?])
            }
            Kind::Lstm => {
                let product = cx.g.matmul(h, wholes[0])?;
                let z = cx.g.add(x, product)?;
                let parts: [Value; 4] = [
                    self.columns(cx, z, 0)?,
                    self.columns(cx, z, 1)?,
                    self.columns(cx, z, 2)?,
                    self.columns(cx, z, 3)?,
                ];
                let i = self.recurrent.apply(cx, parts[0])?;
                let f = self.recurrent.apply(cx, parts[1])?;
                let candidate = self.activation.apply(cx, parts[2])?;
                let o = self.recurrent.apply(cx, parts[3])?;
                let (kept, new) = (cx.g.mul(f, states[1])?, cx.g.mul(i, candidate)?);
                let c = cx.g.add(kept, new)?;
                let shown = self.activation.apply(cx, c)?;
                Ok(vec![cx.g.mul(o, shown)?, c])
            }
            Kind::GruAfter => {
                let mut product = cx.g.matmul(h, wholes[0])?;
                if let Some(&bias) = wholes.get(1) {
                    product = add_bias(cx, product, bias)?;
                }
                let z = self.gate(cx, x, product, 0)?;
                let r = self.gate(cx, x, product, 1)?;
                let (from_x, from_h) = (self.columns(cx, x, 2)?, self.columns(cx, product, 2)?);
                let reset = cx.g.mul(r, from_h)?;
                let sum = cx.g.add(from_x, reset)?;
                self.mix(cx, z, h, sum)
            }
            Kind::GruBefore => {
                let product = cx.g.matmul(h, wholes[0])?;
                let z = self.gate(cx, x, product, 0)?;
                let r = self.gate(cx, x, product, 1)?;
                let reset = cx.g.mul(r, h)?;
                let from_h = cx.g.matmul(reset, wholes[1])?;
                let from_x = self.columns(cx, x, 2)?;
                let sum = cx.g.add(from_x, from_h)?;
                self.mix(cx, z, h, sum)
            }
        }
    }

    fn gate(&self, cx: &mut Cx, x: Value, product: Value, stretch: usize) -> Out<Value> {
        let (a, b) = (self.columns(cx, x, stretch)?, self.columns(cx, product, stretch)?);
        let sum = cx.g.add(a, b)?;
        self.recurrent.apply(cx, sum)
    }

    /// z·h + (1 − z)·act(sum).
    fn mix(&self, cx: &mut Cx, z: Value, h: Value, sum: Value) -> Out<Vec<Value>> {
        let candidate = self.activation.apply(cx, sum)?;
        let ty = cx.g.ty(z).clone();
        let one = cx.g.full(ty.dtype, 1.0, &ty.shape)?;
        let rest = cx.g.sub(one, z)?;
        let (kept, new) = (cx.g.mul(z, h)?, cx.g.mul(rest, candidate)?);
        Ok(vec![cx.g.add(kept, new)?])
    }
}
