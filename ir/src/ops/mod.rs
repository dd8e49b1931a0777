//! The operations. One file each; the `ops!` macro lists them.
//!
//! An operation states its attributes, its types, what it computes and its gradient in ordinary operations. From what
//! it computes follow the sharding rule, the costs, the interpreter and the kernels.

mod prelude;
mod scan_cuts;
mod scan_grad;
mod scan_hoist;

use crate::attr::{AttrError, Attrs};
use crate::compute::Compute;
use crate::interp::{EvalError, Exchange};
use crate::messages::Messages;
use crate::shard::{Layout, ShardingRule};
use crate::{Graph, NodeId, Scalar, Tensor, Type, Value};
use smallvec::SmallVec;
use std::sync::Arc;

/// Types of an operation's results.
pub type Types = SmallVec<[Type; 1]>;

/// What an operation does.
#[derive(Clone, Debug)]
pub enum Body {
    /// Every result element is a scalar expression.
    Compute(Compute),
    /// The same elements in the same order under another shape: no data moves.
    View,
    /// Work of its own, defined by [`OpDef::eval`].
    Leaf,
    /// Communication between devices.
    Communication,
}

/// Operands or attributes that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: {problem}")]
pub struct TypeError {
    op: String,
    problem: String,
}

impl TypeError {
    /// An error with a description; the operation's name is added by the graph.
    pub fn new(problem: impl Into<String>) -> TypeError {
        TypeError { op: String::new(), problem: problem.into() }
    }

    /// The error with the operation's name.
    pub fn of(self, op: &str) -> TypeError {
        TypeError { op: if self.op.is_empty() { op.into() } else { self.op }, ..self }
    }
}

/// Why a gradient could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GradError {
    /// The operation has none.
    #[error("`{0}` has no gradient")]
    None(String),
    /// A gradient operation did not fit: a defect of the operation's gradient.
    #[error(transparent)]
    Type(#[from] TypeError),
}

/// What an operation's gradient is written with.
#[derive(Debug)]
pub struct GradCx<'g> {
    /// The graph that the gradient is appended to.
    pub g: &'g mut Graph,
    /// The operation's operands.
    pub args: &'g [Value],
    /// The operation's results.
    pub results: &'g [Value],
    /// Gradient of each result; `None` is zero. At least one is there.
    pub cotangents: &'g [Option<Value>],
}

impl GradCx<'_> {
    /// The gradient of the only result.
    pub fn dy(&self) -> Value {
        self.cotangents[0].expect("a node is differentiated only when a result has a gradient")
    }

    /// Type of an operand.
    pub fn ty(&self, arg: usize) -> Type {
        self.g.ty(self.args[arg]).clone()
    }
}

/// Gradient of each operand; `None` is zero.
pub type Grads = Result<Vec<Option<Value>>, GradError>;

/// What a device's version of an operation is made from.
#[derive(Debug)]
pub struct LocalCx<'a> {
    /// The device.
    pub device: usize,
    /// Types of the whole operands.
    pub args: &'a [&'a Type],
    /// Layouts of the operands.
    pub arg_layouts: &'a [Layout],
    /// Types of the device's parts of the results.
    pub results: &'a [Type],
    /// Types of the whole results.
    pub global_results: &'a [&'a Type],
    /// Layouts of the results.
    pub result_layouts: &'a [Layout],
}

/// The definition of an operation.
pub trait OpDef: Sized + Clone {
    /// The name in the text form.
    const NAME: &'static str;

    /// The attributes as text; write it with [`attributes!`](crate::attributes).
    fn attrs(&self) -> Attrs;

    /// The inverse of `attrs`.
    fn from_attrs(attrs: Attrs) -> Result<Self, AttrError>;

    /// Types of the results.
    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError>;

    /// What it does, for operands that `infer` accepted.
    fn body(&self, args: &[&Type], results: &[&Type]) -> Body;

    /// Writes the gradient of each operand in ordinary operations.
    fn grad(&self, cx: &mut GradCx<'_>) -> Grads;

    /// Along what it can be cut. Follows from the Compute; an override needs a test that executes it.
    fn rule(&self, args: &[&Type], results: &[&Type]) -> ShardingRule {
        match self.body(args, results) {
            Body::Compute(c) => ShardingRule::of(&c, args),
            Body::View | Body::Leaf | Body::Communication => ShardingRule::default(),
        }
    }

    /// The operation that a device performs on its parts.
    fn localize(&self, cx: &LocalCx<'_>) -> Self {
        let _ = cx;
        self.clone()
    }

    /// Results for given operands. Only leaves and communication define it; the rest is interpreted from `body`.
    fn eval(&self, args: &[&Tensor], results: &[Type], exchange: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        let _ = (args, results, exchange);
        Err(EvalError::NotALeaf(Self::NAME))
    }

    /// What a communication between two devices sends, receives and makes of it.
    fn messages(&self, args: &[&Type], results: &[&Type]) -> Option<Messages> {
        let _ = (args, results);
        None
    }

    /// The same for each operand and result, where several share a message: in it their parts stand one after another.
    fn members(&self, args: &[&Type], results: &[&Type]) -> Option<Vec<Messages>> {
        self.messages(args, results).map(|m| vec![m])
    }

    /// Scalar operations of a leaf, whose work its Compute does not tell.
    fn leaf_flops(&self, args: &[&Type], results: &[&Type]) -> u64 {
        let _ = args;
        results.iter().map(|t| t.shape.elements() as u64).sum()
    }
}

/// Lists the operations: module, type, in alphabetical order.
macro_rules! ops {
    ($($module:ident :: $name:ident),+ $(,)?) => {
        $(mod $module; pub use $module::$name;)+

        /// An operation with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op { $(
            #[allow(missing_docs, reason = "the struct of that name is documented")]
            $name($name)
        ),+ }

        $(impl From<$name> for Op { fn from(op: $name) -> Op { Op::$name(op) } })+

        impl Op {
            /// The names of all operations.
            pub const NAMES: &'static [&'static str] = &[$($name::NAME),+];

            /// The name in the text form.
            pub fn name(&self) -> &'static str { match self { $(Op::$name(_) => $name::NAME),+ } }

            /// The attributes as text.
            pub fn attrs(&self) -> Attrs { match self { $(Op::$name(op) => op.attrs()),+ } }

            /// The operation of that name with attributes; `None` if there is no such operation.
            pub fn parse(name: &str, attrs: Attrs) -> Option<Result<Op, AttrError>> {
                match name { $($name::NAME => Some($name::from_attrs(attrs).map(Op::$name)),)+ _ => None }
            }

            /// Types of the results.
            pub fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
                match self { $(Op::$name(op) => op.infer(args)),+ }
            }

            /// What it does.
            pub fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
                match self { $(Op::$name(op) => op.body(args, results)),+ }
            }

            /// Writes the gradient of each operand.
            pub fn grad(&self, cx: &mut GradCx<'_>) -> Grads { match self { $(Op::$name(op) => op.grad(cx)),+ } }

            /// Along what it can be cut.
            pub fn rule(&self, args: &[&Type], results: &[&Type]) -> ShardingRule {
                match self { $(Op::$name(op) => op.rule(args, results)),+ }
            }

            /// The operation that a device performs on its parts.
            pub fn localize(&self, cx: &LocalCx<'_>) -> Op {
                match self { $(Op::$name(op) => op.localize(cx).into()),+ }
            }

            /// Results of a leaf or of communication.
            pub fn eval(
                &self, args: &[&Tensor], results: &[Type], exchange: &mut dyn Exchange,
            ) -> Result<Vec<Tensor>, EvalError> {
                match self { $(Op::$name(op) => op.eval(args, results, exchange)),+ }
            }

            /// What the devices of a pair send each other for each operand and result, all in one message.
            pub fn members(&self, args: &[&Type], results: &[&Type]) -> Option<Vec<Messages>> {
                match self { $(Op::$name(op) => op.members(args, results)),+ }
            }

            /// What the devices of a pair send each other and make of it; `None` unless it is communication of two that
            /// has one operand and result at most.
            pub fn messages(&self, args: &[&Type], results: &[&Type]) -> Option<Messages> {
                match self { $(Op::$name(op) => op.messages(args, results)),+ }
            }

            fn leaf_flops(&self, args: &[&Type], results: &[&Type]) -> u64 {
                match self { $(Op::$name(op) => op.leaf_flops(args, results)),+ }
            }
        }
    };
}

ops! {
    all_gather::AllGather,
    all_reduce::AllReduce,
    all_to_all::AllToAll,
    arg_max::ArgMax,
    binary::Binary,
    blocks::Blocks,
    broadcast::Broadcast,
    bucket::Bucket,
    cast::Cast,
    compare::Compare,
    concat::Concat,
    constant::Constant,
    contract::Contract,
    conv::Conv,
    iota::Iota,
    log_softmax::LogSoftmax,
    pad::Pad,
    pick::Pick,
    pool::Pool,
    pool_arg_max::PoolArgMax,
    random::Random,
    recv::Recv,
    reduce::Reduce,
    reduce_scatter::ReduceScatter,
    reshape::Reshape,
    reshard::Reshard,
    reverse::Reverse,
    scan::Scan,
    scatter_add::ScatterAdd,
    select::Select,
    send::Send,
    slice::Slice,
    softmax::Softmax,
    standardize::Standardize,
    stop_gradient::StopGradient,
    take::Take,
    take_each::TakeEach,
    transpose::Transpose,
    tree_sum::TreeSum,
    unary::Unary,
    unpool::Unpool,
}

pub use bucket::Kept;

impl Op {
    /// Whether it moves data between devices.
    pub fn is_communication(&self) -> bool {
        matches!(
            self,
            Op::AllGather(_)
                | Op::AllReduce(_)
                | Op::AllToAll(_)
                | Op::Bucket(_)
                | Op::Recv(_)
                | Op::ReduceScatter(_)
                | Op::Reshard(_)
                | Op::Send(_)
        )
    }

    /// The Compute, unless the operation is a view, a leaf or communication.
    pub fn compute(&self, args: &[&Type], results: &[&Type]) -> Option<Compute> {
        match self.body(args, results) {
            Body::Compute(c) => Some(c),
            Body::View | Body::Leaf | Body::Communication => None,
        }
    }

    /// Scalar operations of one execution; a fused multiply-add counts as two.
    pub fn flops(&self, args: &[&Type], results: &[&Type]) -> u64 {
        match self.body(args, results) {
            Body::Compute(c) => c.flops(),
            Body::View | Body::Communication => 0,
            Body::Leaf => self.leaf_flops(args, results),
        }
    }
}

impl Op {
    /// The graph that the operation repeats, if it has one.
    pub fn body_graph(&self) -> Option<&Arc<Graph>> {
        if let Op::Scan(op) = self { Some(&op.body) } else { None }
    }
}

impl Graph {
    /// Appends what a device does for an operation, given its local operands, and checks that it gives the parts wanted.
    /// Where the operation does not exist for empty parts (rows that are divided by no group) and no result has an
    /// element, constants without elements take its place.
    pub fn push_local(&mut self, op: &Op, args: &[Value], cx: &LocalCx<'_>) -> Result<SmallVec<[Value; 1]>, TypeError> {
        let local = op.localize(cx);
        let made = local.infer(&args.iter().map(|a| self.ty(*a)).collect::<Vec<_>>());
        let fits = made.as_ref().is_ok_and(|types| types[..] == *cx.results);
        if !fits && !op.is_communication() && cx.results.iter().all(|t| t.shape.elements() == 0) {
            let empty = |t: &Type| Constant { shape: t.shape.clone(), elements: vec![Scalar::zero(t.dtype)] };
            return cx.results.iter().map(|t| self.push(empty(t), &[])).collect();
        }
        if !fits {
            let types = made.map_err(|e| e.of(op.name()))?;
            let problem = format!("device {} makes {types:?} of its parts instead of {:?}", cx.device, cx.results);
            return Err(TypeError::new(problem).of(op.name()));
        }
        self.push_all(local, args)
    }

    /// A node's Compute.
    pub fn compute(&self, node: NodeId) -> Option<Compute> {
        self.nodes[node].op.compute(&self.arg_types(node), &self.result_types(node))
    }

    /// A node's sharding rule.
    pub fn rule(&self, node: NodeId) -> ShardingRule {
        self.nodes[node].op.rule(&self.arg_types(node), &self.result_types(node))
    }

    /// Scalar operations of a node.
    pub fn flops(&self, node: NodeId) -> u64 {
        self.nodes[node].op.flops(&self.arg_types(node), &self.result_types(node))
    }
}
