//! Positions that a call looks up in tables, checked before it runs: a row that a table lacks is the user's error, and
//! the kernels would read zeros.

use intwain_ir::ops::Op;
use intwain_ir::{DType, Graph, NodeId, Shape, Tensor, Value, scalar};

/// An input whose elements are positions in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// Which of the graph's inputs.
    pub(crate) input: usize,
    /// Rows of the table.
    rows: usize,
    /// The layer that looks up.
    layer: String,
    /// For each dimension but the first whether a position of it is looked up: a model may take some columns of an input
    /// as positions and others as numbers.
    kept: Vec<Vec<bool>>,
}

/// The look-ups whose positions come straight from an input, converted, cut out or rearranged at most.
pub(crate) fn find(graph: &Graph) -> Vec<Lookup> {
    let inputs: Vec<Value> = graph.inputs().map(|p| p.value).collect();
    let lookup = |id: NodeId| {
        let node = &graph.nodes[id];
        if !matches!(node.op, Op::Take(_)) {
            return None;
        }
        let source = source(graph, &inputs, node.args[1])?;
        let ty = graph.ty(inputs[source.input]);
        let mask = |(d, kept): (usize, &Vec<usize>)| (0..ty.shape[d]).map(|i| kept.contains(&i)).collect();
        let kept = source.kept.iter().enumerate().skip(1).map(mask).collect();
        let (rows, layer) = (graph.shape(node.args[0])[0], node.origin.to_string());
        Some(Lookup { input: source.input, rows, layer, kept })
    };
    graph.nodes.keys().filter_map(lookup).collect()
}

/// Where the elements of a value come from.
struct Source {
    input: usize,
    /// For each dimension of the input the positions that are used.
    kept: Vec<Vec<usize>>,
    /// Whether the value has the input's dimensions.
    order: Order,
}

#[derive(PartialEq)]
enum Order {
    Kept,
    Rearranged,
}

/// The input that a value is made of without changing elements, conversion aside.
fn source(graph: &Graph, inputs: &[Value], value: Value) -> Option<Source> {
    if let Some(input) = inputs.iter().position(|v| *v == value) {
        let kept = graph.shape(value).iter().map(|&n| (0..n).collect()).collect();
        return Some(Source { input, kept, order: Order::Kept });
    }
    let node = &graph.nodes[graph.def_node(value)?];
    let from = || source(graph, inputs, node.args[0]);
    match &node.op {
        Op::Cast(_) | Op::StopGradient(_) => from(),
        Op::Reshape(_) | Op::Transpose(_) | Op::Broadcast(_) | Op::Reverse(_) => {
            Some(Source { order: Order::Rearranged, ..from()? })
        }
        Op::Slice(s) => {
            let mut source = from().filter(|f| f.order == Order::Kept)?;
            for (d, kept) in source.kept.iter_mut().enumerate() {
                *kept = kept[s.start[d]..s.limit[d]].iter().copied().step_by(s.stride[d]).collect();
            }
            // Rows must not be cut: of them there may be any number.
            let rows = graph.shape(inputs[source.input]).first();
            (rows == Some(&source.kept.first()?.len())).then_some(source)
        }
        _ => None,
    }
}

impl Lookup {
    /// What is wrong with the positions, if anything.
    pub(crate) fn problem(&self, positions: &Tensor) -> Option<String> {
        let rows = self.rows as i64;
        (0..positions.elements()).filter(|&i| self.looks_up(&positions.ty.shape, i)).find_map(|i| {
            let x = positions.get(i);
            let at = scalar::cast(DType::I64, x).to_i64();
            let outside = at < 0 || at >= rows;
            outside.then(|| format!("element {i} is {x}, layer `{}` has rows 0 to {}", self.layer, rows - 1))
        })
    }

    /// Whether an element of the input, by its number, is a position.
    fn looks_up(&self, shape: &Shape, mut element: usize) -> bool {
        let dims = shape.iter().skip(1).zip(&self.kept).rev();
        dims.into_iter().all(|(&n, kept)| {
            let at = element % n;
            element /= n;
            kept.get(at) == Some(&true)
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

    #[test]
    fn columns_that_are_no_positions_hold_anything() {
        let mut g = Graph::new("m");
        let x = g.input("x", Type::new(DType::F32, [1, 3]), Rows::Batched);
        let table = g.weight("table", Type::new(DType::F32, [5, 3]), Trainable::Yes);
        let column = ops::Slice { start: vec![0, 1], limit: vec![1, 2], stride: vec![1, 1] };
        let column = g.push(column, &[x]).unwrap();
        let at = g.cast(DType::I32, column).unwrap();
        let y = g.push(ops::Take { base: 0 }, &[table, at]).unwrap();
        g.output("y", y);
        let lookups = find(&g);
        assert_eq!(lookups.len(), 1);
        assert_eq!(lookups[0].problem(&Tensor::from_f32([2, 3], &[9.0, 4.0, -7.0, 50.0, 0.0, 8.0])), None);
        assert!(lookups[0].problem(&Tensor::from_f32([2, 3], &[0.0, 4.0, 0.0, 0.0, 5.0, 0.0])).is_some());
    }
}
