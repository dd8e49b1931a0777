//! The arithmetic of recurrent cells.

use intwain_ir::{Shape, Trainable, Value};

use super::activations::{Activation, Keras2, initializer};
use super::build::Builder;
use super::conv::add_bias;
use super::cx::{Cx, Out};
use super::lost::{CellLoss, columns_for, products};
use super::penalties::OfVariables;
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
    /// No activation: the output is the sum of both products.
    Bare,
    /// Two products of the first state, which become the states; their sum is the output.
    Twofold,
}

/// The classes of cells, as Keras names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Lstm,
    Gru,
    Simple,
    OneState,
    TwoStates,
}

/// The module of the cells that Keras's own tests are written with.
const TESTS: &str = "keras.src.layers.rnn.rnn_test";

impl Family {
    /// The family of a cell class, from a module where the file says it.
    pub(super) fn of_cell(class: &str, module: Option<&str>) -> Option<Family> {
        Some(match (class, module) {
            ("LSTMCell", _) => Family::Lstm,
            ("GRUCell", _) => Family::Gru,
            ("SimpleRNNCell", _) => Family::Simple,
            ("OneStateRNNCell", Some(TESTS)) => Family::OneState,
            ("TwoStatesRNNCell", Some(TESTS)) => Family::TwoStates,
            _ => return None,
        })
    }

    /// The class and the name that a layer of the family gives its cell.
    pub(super) fn cell(self) -> (&'static str, &'static str) {
        match self {
            Family::Lstm => ("LSTMCell", "lstm_cell"),
            Family::Gru => ("GRUCell", "gru_cell"),
            Family::Simple => ("SimpleRNNCell", "simple_rnn_cell"),
            Family::OneState => ("OneStateRNNCell", "one_state_rnn_cell"),
            Family::TwoStates => ("TwoStatesRNNCell", "two_states_rnn_cell"),
        }
    }
}

impl Kind {
    /// Stretches of `units` columns in the kernels.
    fn gates(self) -> usize {
        match self {
            Kind::Lstm => 4,
            Kind::GruAfter | Kind::GruBefore => 3,
            Kind::Simple | Kind::Bare | Kind::Twofold => 1,
        }
    }
}

/// Keys that matter for training only, or say how and not what is computed.
const NEUTRAL: [&str; 8] = [
    "unroll",
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
    loss: CellLoss,
    /// What is said of the variables.
    said: OfVariables,
}

/// A cell's variables, as they are used.
pub(super) struct Variables {
    /// What projects the input.
    pub(super) projection: Projection,
    /// Contracted with the states.
    recurrent: Vec<Value>,
    state_bias: Option<Value>,
    /// What the products of the state see of it.
    state_masks: Vec<Value>,
}

/// What projects an input: a kernel, or one for each mask, and a bias where there is one.
#[derive(Clone, Debug)]
pub(super) struct Projection {
    kernels: Vec<Value>,
    bias: Option<Value>,
    masks: Vec<Value>,
}

impl Projection {
    /// All of it in a list.
    pub(super) fn values(&self) -> Vec<Value> {
        self.kernels.iter().copied().chain(self.bias).chain(self.masks.iter().copied()).collect()
    }

    /// The same of other values in the same order.
    pub(super) fn among(&self, values: &[Value]) -> Projection {
        let (kernels, rest) = values.split_at(self.kernels.len());
        let (bias, masks) = rest.split_at(usize::from(self.bias.is_some()));
        Projection { kernels: kernels.to_vec(), bias: bias.first().copied(), masks: masks.to_vec() }
    }

    /// The product of an input `[N, F]`, or of all steps `[N, T, F]`.
    pub(super) fn apply(&self, cx: &mut Cx, x: Value) -> Out<Value> {
        let shape = cx.g.shape(x).clone();
        let own = [0, shape.len() - 1];
        let masks = self.masks.iter().map(|m| cx.g.broadcast(*m, &shape, &own));
        let masks = masks.collect::<Result<Vec<_>, _>>()?;
        let product = products(cx, x, &masks, &self.kernels, |cx, x, kernel| Ok(cx.g.matmul(x, kernel)?))?;
        self.bias.map_or(Ok(product), |bias| add_bias(cx, product, bias))
    }
}

/// The bias of gates i, f, c, o where that of the forget gate begins at 1.
pub(super) fn forget_bias(initializer: Initializer, units: usize) -> Initializer {
    let others = |n: usize| (n * units, initializer.clone());
    Initializer::Stretches(vec![others(1), (units, Initializer::ONES), others(2)])
}

/// Keras 2's default for the gates' activation is another than Keras 3's.
pub(super) fn gates(cx: &Cx) -> Activation {
    match cx.generation {
        Generation::One | Generation::Two => Activation::HardSigmoid { keras_2: Keras2::Yes },
        Generation::Three => Activation::Sigmoid,
    }
}

impl Cell {
    /// Reads the part of a configuration that layers and cells share.
    pub(super) fn read(b: &Builder, fields: &Fields<'_>, family: Family) -> Out<Cell> {
        let kind = match family {
            Family::Lstm => Kind::Lstm,
            Family::Simple => Kind::Simple,
            Family::Gru if fields.bool_or("reset_after", b.cx.generation == Generation::Three)? => Kind::GruAfter,
            Family::Gru => Kind::GruBefore,
            Family::OneState => return Cell::read_test(fields, Kind::Bare),
            Family::TwoStates => return Cell::read_test(fields, Kind::Twofold),
        };
        fields.irrelevant(&NEUTRAL);
        let loss = CellLoss::read(fields, kind.gates())?;
        let units = fields.require("units")?.positive()?;
        let recurrent = match kind {
            Kind::Simple | Kind::Bare | Kind::Twofold => Activation::Linear,
            Kind::Lstm | Kind::GruAfter | Kind::GruBefore => {
                Activation::read(&b.cx, fields, "recurrent_activation", gates(&b.cx))?
            }
        };
        let unit_forget = kind == Kind::Lstm && fields.bool_or("unit_forget_bias", true)?;
        let bias_init = initializer(fields, "bias_initializer", Initializer::ZEROS)?;
        Ok(Cell {
            kind,
            units,
            activation: Activation::read(&b.cx, fields, "activation", Activation::Tanh)?,
            recurrent,
            use_bias: fields.bool_or("use_bias", true)?,
            kernel_init: initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?,
            recurrent_init: initializer(fields, "recurrent_initializer", Initializer::Orthogonal { gain: 1.0 })?,
            bias_init: if unit_forget { forget_bias(bias_init, units) } else { bias_init },
            loss,
            said: OfVariables::read(fields)?,
        })
    }

    /// Reads the configuration of a layer that is CuDNN's, whose activations are fixed.
    pub(super) fn read_cudnn(fields: &Fields<'_>, family: Family) -> Out<Cell> {
        fields.irrelevant(&NEUTRAL);
        fields.irrelevant(&["dropout", "recurrent_dropout", "seed", "implementation"]);
        let units = fields.require("units")?.positive()?;
        let kind = if family == Family::Lstm { Kind::Lstm } else { Kind::GruAfter };
        let unit_forget = kind == Kind::Lstm && fields.bool_or("unit_forget_bias", true)?;
        let bias_init = initializer(fields, "bias_initializer", Initializer::ZEROS)?;
        Ok(Cell {
            kind,
            units,
            activation: Activation::Tanh,
            recurrent: Activation::Sigmoid,
            use_bias: true,
            kernel_init: initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?,
            recurrent_init: initializer(fields, "recurrent_initializer", Initializer::Orthogonal { gain: 1.0 })?,
            bias_init: if unit_forget { forget_bias(bias_init, units) } else { bias_init },
            loss: CellLoss::default(),
            said: OfVariables::read(fields)?,
        })
    }

    /// Reads the configuration of a cell of Keras's tests.
    fn read_test(fields: &Fields<'_>, kind: Kind) -> Out<Cell> {
        let units = fields.require("units")?.positive()?;
        if let Some(size) = fields.opt("state_size")
            && !size.one_or_many().iter().all(|s| s.usize().is_ok_and(|s| s == units))
        {
            return Err(size.unsupported("states of another size than the units").into());
        }
        Ok(Cell {
            kind,
            units,
            activation: Activation::Linear,
            recurrent: Activation::Linear,
            use_bias: false,
            kernel_init: Initializer::ONES,
            recurrent_init: Initializer::ONES,
            bias_init: Initializer::ZEROS,
            loss: CellLoss::default(),
            said: OfVariables::default(),
        })
    }

    /// Number of states, each `[N, units]`.
    pub(super) fn states(&self) -> usize {
        match self.kind {
            Kind::Lstm | Kind::Twofold => 2,
            Kind::GruAfter | Kind::GruBefore | Kind::Simple | Kind::Bare => 1,
        }
    }

    /// Whether the output is the first state.
    pub(super) fn shows_state(&self) -> bool {
        match self.kind {
            Kind::Lstm | Kind::GruAfter | Kind::GruBefore | Kind::Simple | Kind::Bare => true,
            Kind::Twofold => false,
        }
    }

    /// Declares the variables of the current owner, and draws what is lost of a sequence.
    pub(super) fn declare(&self, cx: &mut Cx, (rows, features): (usize, usize)) -> Out<Variables> {
        let outer = cx.account.set_said(self.said.clone());
        let declared = self.declare_all(cx, features);
        cx.account.set_said(outer);
        let mut vars = declared?;
        let masks = self.loss.draw(cx, self.kind.gates(), &[rows, features], &[rows, self.units])?;
        vars.projection.kernels = columns_for(cx, vars.projection.kernels[0], &masks.input)?;
        (vars.projection.masks, vars.state_masks) = (masks.input, masks.state);
        Ok(vars)
    }

    fn declare_all(&self, cx: &mut Cx, features: usize) -> Out<Variables> {
        let (u, columns) = (self.units, self.units * self.kind.gates());
        let kernel = cx.var("kernel", &[features, columns], self.kernel_init.clone(), Trainable::Yes)?;
        let mut product = |name: &str| cx.var(name, &[u, columns], self.recurrent_init.clone(), Trainable::Yes);
        let recurrent = match self.kind {
            Kind::Twofold => vec![product("recurrent_kernel_1")?, product("recurrent_kernel_2")?],
            Kind::Lstm | Kind::GruAfter | Kind::GruBefore | Kind::Simple | Kind::Bare => {
                vec![product("recurrent_kernel")?]
            }
        };
        let variables = |recurrent, bias, state_bias| Variables {
            projection: Projection { kernels: vec![kernel], bias, masks: Vec::new() },
            recurrent,
            state_bias,
            state_masks: Vec::new(),
        };
        if !self.use_bias {
            return Ok(variables(recurrent, None, None));
        }
        if self.kind != Kind::GruAfter {
            let bias = cx.var("bias", &[columns], self.bias_init.clone(), Trainable::Yes)?;
            return Ok(variables(recurrent, Some(bias), None));
        }
        // Row 0 is added to the input's product, row 1 to the state's.
        let bias = cx.var("bias", &[2, columns], self.bias_init.clone(), Trainable::Yes)?;
        let mut row = |r: usize| -> Out<Value> {
            let row = cx.g.slice_dim(bias, 0, r..r + 1)?;
            Ok(cx.g.reshape(row, &Shape::from([columns]))?)
        };
        let (of_input, of_state) = (row(0)?, row(1)?);
        Ok(variables(recurrent, Some(of_input), Some(of_state)))
    }

    /// What every step sees whole: what the state is contracted with, the bias, the masks.
    pub(super) fn wholes(&self, cx: &mut Cx, vars: &Variables) -> Out<Vec<Value>> {
        let (u, first) = (self.units, vars.recurrent[0]);
        let factors = match self.kind {
            Kind::GruBefore if vars.state_masks.is_empty() => {
                vec![cx.g.slice_dim(first, 1, 0..2 * u)?, cx.g.slice_dim(first, 1, 2 * u..3 * u)?]
            }
            Kind::Lstm | Kind::GruAfter | Kind::GruBefore | Kind::Simple | Kind::Bare => {
                columns_for(cx, first, &vars.state_masks)?
            }
            Kind::Twofold => vars.recurrent.clone(),
        };
        Ok(factors.into_iter().chain(vars.state_bias).chain(vars.state_masks.iter().copied()).collect())
    }
}

/// What a step makes of the state before it.
struct Recurrence<'a> {
    /// One, or one for each mask.
    factors: &'a [Value],
    bias: Option<Value>,
    masks: &'a [Value],
}

impl Recurrence<'_> {
    fn product(&self, cx: &mut Cx, h: Value) -> Out<Value> {
        let product = products(cx, h, self.masks, self.factors, |cx, h, factor| Ok(cx.g.matmul(h, factor)?))?;
        self.bias.map_or(Ok(product), |bias| add_bias(cx, product, bias))
    }
}

impl Cell {
    fn columns(&self, cx: &mut Cx, x: Value, stretch: usize) -> Out<Value> {
        Ok(cx.g.slice_dim(x, 1, stretch * self.units..(stretch + 1) * self.units)?)
    }

    /// The output and the states after a step. `x` is the input's projection, `wholes` what [`Cell::wholes`] gives.
    pub(super) fn advance(
        &self,
        cx: &mut Cx,
        vars: &Variables,
        x: Value,
        states: &[Value],
        wholes: &[Value],
    ) -> Out<(Value, Vec<Value>)> {
        if self.kind == Kind::Twofold {
            let products = [cx.g.matmul(states[0], wholes[0])?, cx.g.matmul(states[0], wholes[1])?];
            let next = vec![cx.g.add(x, products[0])?, cx.g.add(x, products[1])?];
            return Ok((cx.g.add(next[0], next[1])?, next));
        }
        let (rest, masks) = wholes.split_at(wholes.len() - vars.state_masks.len());
        let (factors, bias) = rest.split_at(rest.len() - usize::from(vars.state_bias.is_some()));
        let next = self.next(cx, x, states, &Recurrence { factors, bias: bias.first().copied(), masks })?;
        Ok((next[0], next))
    }

    /// The states after a step of a cell that shows its first state.
    fn next(&self, cx: &mut Cx, x: Value, states: &[Value], recurrence: &Recurrence<'_>) -> Out<Vec<Value>> {
        let h = states[0];
        match self.kind {
            Kind::Simple | Kind::Bare | Kind::Twofold => {
                let product = recurrence.product(cx, h)?;
                let sum = cx.g.add(x, product)?;
                Ok(vec![self.activation.apply(cx, sum)?])
            }
            Kind::Lstm => {
                let product = recurrence.product(cx, h)?;
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
                let product = recurrence.product(cx, h)?;
                let z = self.gate(cx, x, product, 0)?;
                let r = self.gate(cx, x, product, 1)?;
                let (from_x, from_h) = (self.columns(cx, x, 2)?, self.columns(cx, product, 2)?);
                let reset = cx.g.mul(r, from_h)?;
                let sum = cx.g.add(from_x, reset)?;
                self.mix(cx, z, h, sum)
            }
            Kind::GruBefore => {
                let (last, gates) = recurrence.factors.split_last().expect("a product of what is reset");
                let product = Recurrence { factors: gates, ..*recurrence }.product(cx, h)?;
                let z = self.gate(cx, x, product, 0)?;
                let r = self.gate(cx, x, product, 1)?;
                let left = match recurrence.masks.last() {
                    Some(&mask) => cx.g.mul(h, mask)?,
                    None => h,
                };
                let reset = cx.g.mul(r, left)?;
                let from_h = cx.g.matmul(reset, *last)?;
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
