//! Gradients of tables in which rows are looked up.
//!
//! TensorFlow keeps such a gradient as the rows that are to be added, one for each lookup, and squares these, not their
//! sums: where a row is looked up twice in a batch, optimizers that average squares, and norms that clip, see the sum of two
//! squares. `clipvalue` clips each of them; behind that, `clipnorm` and a loss scale they still are rows, behind `global_clipnorm` and
//! accumulation sums. What is made of them elsewhere is linear, and the same for both. So does Keras on TensorFlow, and we follow it.

use intwain_ir::ops::{Op, TypeError};
use intwain_ir::scalar::Binary;
use intwain_ir::{Graph, Value};

/// The sum of the squares of the rows that a gradient adds up; `None` where it is not made of lookups alone.
pub(super) fn squares(g: &mut Graph, gradient: Value) -> Result<Option<Value>, TypeError> {
    let Some(id) = g.def_node(gradient) else { return Ok(None) };
    let node = g.nodes[id].clone();
    match &node.op {
        Op::ScatterAdd(op) => {
            let squared = g.mul(node.args[1], node.args[1])?;
            g.push(op.clone(), &[node.args[0], squared]).map(Some)
        }
        Op::Binary(op) if op.function == Binary::Add => {
            let (Some(a), Some(b)) = (squares(g, node.args[0])?, squares(g, node.args[1])?) else { return Ok(None) };
            g.add(a, b).map(Some)
        }
        _ => Ok(None),
    }
}

/// A gradient with its rows, or itself where it is not made of lookups alone, changed by a function of elements that keeps zeros.
pub(crate) fn each(
    g: &mut Graph,
    gradient: Value,
    change: &dyn Fn(&mut Graph, Value) -> Result<Value, TypeError>,
) -> Result<Value, TypeError> {
    if !is_lookups(g, gradient) {
        return change(g, gradient);
    }
    let Some(id) = g.def_node(gradient) else { return change(g, gradient) };
    let node = g.nodes[id].clone();
    match node.op {
        Op::ScatterAdd(op) => {
            let rows = change(g, node.args[1])?;
            g.push(op, &[node.args[0], rows])
        }
        op => {
            let parts = node.args.iter().map(|arg| each(g, *arg, change)).collect::<Result<Vec<_>, _>>()?;
            g.push(op, &parts)
        }
    }
}

fn is_lookups(g: &Graph, gradient: Value) -> bool {
    g.def_node(gradient).is_some_and(|id| match &g.nodes[id].op {
        Op::ScatterAdd(_) => true,
        Op::Binary(op) if op.function == Binary::Add => g.nodes[id].args.iter().all(|arg| is_lookups(g, *arg)),
        _ => false,
    })
}
