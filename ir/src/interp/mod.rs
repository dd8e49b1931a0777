//! The reference interpreter: what every back end is compared with.

mod chain;
mod compute;
mod devices;
mod tree;

pub use compute::evaluate;
pub use devices::run_devices;

use crate::ops::Body;
use crate::{Graph, Tensor, Type, Value};
use cranelift_entity::SecondaryMap;

/// Why a graph could not be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// An operation was asked to evaluate itself although its Compute defines it.
    #[error("`{0}` is not a leaf")]
    NotALeaf(&'static str),
    /// An argument does not fit its parameter.
    #[error("`{name}` takes {want}, given {got}")]
    Argument {
        /// The parameter.
        name: String,
        /// Its type.
        want: Box<Type>,
        /// The argument's type.
        got: Box<Type>,
    },
    /// Too few or too many arguments.
    #[error("{want} parameters, {got} arguments")]
    Arguments {
        /// Number of parameters.
        want: usize,
        /// Number of arguments.
        got: usize,
    },
    /// A device communicated with one that does not exist or has stopped.
    #[error("device {peer} is not there for channel {channel}")]
    NoPeer {
        /// The communication.
        channel: usize,
        /// The other device.
        peer: usize,
    },
    /// What arrived is not what was expected.
    #[error("channel {channel}: expected {want} from device {peer}, got channel {got_channel} with {got}")]
    Unexpected {
        /// The communication.
        channel: usize,
        /// The other device.
        peer: usize,
        /// The type expected.
        want: Box<Type>,
        /// The channel that arrived.
        got_channel: usize,
        /// The type that arrived.
        got: Box<Type>,
    },
}

/// How a device gives values to others and receives theirs.
pub trait Exchange {
    /// Gives a value to a device.
    fn send(&mut self, channel: usize, to: usize, value: &Tensor) -> Result<(), EvalError>;
    /// Waits for a value from a device.
    fn recv(&mut self, channel: usize, from: usize, ty: &Type) -> Result<Tensor, EvalError>;
}

/// A device without others.
#[derive(Debug)]
pub struct Alone;

impl Exchange for Alone {
    fn send(&mut self, channel: usize, to: usize, _: &Tensor) -> Result<(), EvalError> {
        Err(EvalError::NoPeer { channel, peer: to })
    }
    fn recv(&mut self, channel: usize, from: usize, _: &Type) -> Result<Tensor, EvalError> {
        Err(EvalError::NoPeer { channel, peer: from })
    }
}

/// Runs a graph on one device: one argument per parameter, in order; gives the outputs in order.
pub fn run(graph: &Graph, args: Vec<Tensor>) -> Result<Vec<Tensor>, EvalError> {
    run_with(graph, args, &mut Alone)
}

/// Runs a graph that may communicate.
pub fn run_with(graph: &Graph, args: Vec<Tensor>, exchange: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
    if args.len() != graph.params.len() {
        return Err(EvalError::Arguments { want: graph.params.len(), got: args.len() });
    }
    let mut values: SecondaryMap<Value, Option<Tensor>> = SecondaryMap::new();
    let mut last_use: SecondaryMap<Value, usize> = SecondaryMap::new();
    for (i, node) in graph.nodes.values().enumerate() {
        node.args.iter().for_each(|a| last_use[*a] = i);
    }
    graph.outputs.iter().for_each(|o| last_use[o.value] = usize::MAX);
    for (p, arg) in graph.params.iter().zip(args) {
        let want = graph.ty(p.value);
        if arg.ty != *want {
            return Err(EvalError::Argument {
                name: p.name.to_string(),
                want: Box::new(want.clone()),
                got: Box::new(arg.ty),
            });
        }
        values[p.value] = Some(arg);
    }
    for (i, (id, node)) in graph.nodes.iter().enumerate() {
        let args: Vec<&Tensor> =
            node.args.iter().map(|a| values[*a].as_ref().expect("definitions precede uses")).collect();
        let results = eval_node(graph, id, &args, exchange)?;
        for (r, t) in node.results.iter().zip(results) {
            values[*r] = Some(t);
        }
        for a in node.args.iter().filter(|a| last_use[**a] == i) {
            values[*a] = None;
        }
    }
    Ok(graph.outputs.iter().map(|o| values[o.value].clone().expect("outputs are defined")).collect())
}

fn eval_node(
    graph: &Graph,
    id: crate::NodeId,
    args: &[&Tensor],
    exchange: &mut dyn Exchange,
) -> Result<Vec<Tensor>, EvalError> {
    let node = &graph.nodes[id];
    let types: Vec<&Type> = args.iter().map(|a| &a.ty).collect();
    let results = graph.result_types(id);
    match node.op.body(&types, &results) {
        Body::Compute(c) => Ok(evaluate(&c, args, &results)),
        Body::View => Ok(vec![Tensor { ty: results[0].clone(), data: args[0].data.clone() }]),
        Body::Leaf | Body::Communication => {
            let results: Vec<Type> = results.into_iter().cloned().collect();
            node.op.eval(args, &results, exchange)
        }
    }
}
