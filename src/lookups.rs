//! Positions that a call looks up in tables, checked before it runs: a row that a table lacks is the user's error, and
//! the kernels would read zeros.

use intwain_ir::ops::Op;
use intwain_ir::{DType, Graph, NodeId, Tensor, Value, scalar};

/// An input whose elements are positions in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// Which of the graph's inputs.
    pub(crate) input: usize,
    /// Rows of the table.
    rows: usize,
    /// The layer that looks up.
    layer: String,
}

/// The look-ups whose positions come straight from an input, converted or rearranged at most.
pub(crate) fn find(graph: &Graph) -> Vec<Lookup> {
    let inputs: Vec<Value> = graph.inputs().map(|p| p.value).collect();
    let lookup = |id: NodeId| {
        let node = &graph.nodes[id];
        if !matches!(node.op, Op::Take(_)) {
            return None;
        }
        let input = inputs.iter().position(|v| *v == source(graph, node.args[1]))?;
        Some(Lookup { input, rows: graph.shape(node.args[0])[0], layer: node.origin.to_string() })
    };
    graph.nodes.keys().filter_map(lookup).collect()
}

/// The value that another one is made of without changing elements, conversion aside.
fn source(graph: &Graph, value: Value) -> Value {
    match graph.def_node(value).map(|n| &graph.nodes[n]) {
        Some(node)
            if matches!(
                node.op,
                Op::Cast(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Reverse(_)
            ) =>
        {
            source(graph, node.args[0])
        }
        Some(_) | None => value,
    }
}

impl Lookup {
    /// What is wrong with the positions, if anything.
    pub(crate) fn problem(&self, positions: &Tensor) -> Option<String> {
        let rows = self.rows as i64;
        (0..positions.elements()).find_map(|i| {
            let x = positions.get(i);
            let at = scalar::cast(DType::I64, x).to_i64();
            let outside = at < 0 || at >= rows;
            outside.then(|| format!("element {i} is {x}, layer `{}` has rows 0 to {}", self.layer, rows - 1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use intwain_ir::{Rows, Trainable, Type, ops};

    #[test]
    fn a_position_outside_the_table_is_found_through_conversions() {
        let mut g = Graph::new("m");
        let ids = g.input("ids", Type::new(DType::F32, [2, 2]), Rows::Batched);
        let table = g.weight("table", Type::new(DType::F32, [5, 3]), Trainable::Yes);
        let at = g.cast(DType::I32, ids).unwrap();
        let y = g.push(ops::Take { base: 0 }, &[table, at]).unwrap();
        g.output("y", y);
        let lookups = find(&g);
        assert_eq!(lookups.len(), 1);
        assert_eq!(lookups[0].problem(&Tensor::from_f32([2, 2], &[0.0, 4.0, 1.0, 2.0])), None);
        for bad in [5.0, -1.0] {
            assert!(lookups[0].problem(&Tensor::from_f32([2, 2], &[0.0, bad, 1.0, 2.0])).is_some(), "{bad}");
        }
    }
}
