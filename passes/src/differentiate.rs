//! Turns a model's graph into the graph of its gradients.

use crate::PassError;
use intwain_ir::ops::GradError;
use intwain_ir::{Graph, ParamKind, Rewriter, Rows, Trainable, Value, grad};

/// The graph of the gradients of Σ ⟨output, cotangent⟩ over the floating outputs. It takes the graph's parameters and
/// `cot{i}` for every floating output i; its outputs are `gin{i}` for every floating input i and `gw{j}` for every
/// trainable weight, each numbered in order (other inputs and outputs count too). What an output does not depend on is
/// zero.
pub fn gradients(graph: &Graph) -> Result<Graph, PassError> {
    let mut rw = Rewriter::new(graph);
    let mut seeds: Vec<(Value, Value)> = Vec::new();
    for (i, o) in graph.outputs.iter().enumerate().filter(|(_, o)| graph.ty(o.value).dtype.is_float()) {
        let ty = graph.ty(o.value).clone();
        seeds.push((o.value, rw.new.input(&format!("cot{i}"), ty, Rows::Batched)));
    }
    for id in graph.nodes.keys() {
        rw.copy(id)?;
    }
    for (output, _) in &mut seeds {
        *output = rw.value(*output);
    }
    let mut wanted: Vec<(String, Value)> = Vec::new();
    let (mut inputs, mut weights) = (0, 0);
    for p in &graph.params {
        let name = match p.kind {
            ParamKind::Input { .. } => {
                inputs += 1;
                format!("gin{}", inputs - 1)
            }
            ParamKind::Weight { trainable: Trainable::Yes } => {
                weights += 1;
                format!("gw{}", weights - 1)
            }
            ParamKind::Weight { trainable: Trainable::Frozen } | ParamKind::State { .. } => continue,
        };
        if graph.ty(p.value).dtype.is_float() {
            wanted.push((name, rw.value(p.value)));
        }
    }
    let mut g = rw.finish();
    g.outputs.clear();
    let values: Vec<Value> = wanted.iter().map(|w| w.1).collect();
    let found = grad::backward(&mut g, &seeds, &values)?;
    for ((name, value), gradient) in wanted.into_iter().zip(found) {
        let gradient = match gradient {
            Some(v) => v,
            None => {
                let ty = g.ty(value).clone();
                g.full(ty.dtype, 0.0, &ty.shape).map_err(GradError::from)?
            }
        };
        g.output(&name, gradient);
    }
    Ok(g)
}

#[cfg(test)]
mod tests {
    use super::*;
    use intwain_ir::{DType, Tensor, Type, interp};

    #[test]
    fn the_gradients_of_a_product_are_products_and_the_unused_weight_gets_zero() {
        let mut g = Graph::new("m");
        let x = g.input("x", Type::new(DType::F32, [1, 2]), Rows::Batched);
        let w = g.weight("w", Type::new(DType::F32, [2, 1]), Trainable::Yes);
        g.weight("frozen", Type::new(DType::F32, [1]), Trainable::Frozen);
        g.weight("unused", Type::new(DType::F32, [1]), Trainable::Yes);
        let y = g.matmul(x, w).unwrap();
        g.output("y", y);
        let d = gradients(&g).unwrap();
        let names: Vec<&str> = d.outputs.iter().map(|o| &*o.name).collect();
        assert_eq!(names, ["gin0", "gw0", "gw1"]);
        let t = |shape: &[usize], v: &[f32]| Tensor::from_f32(shape, v);
        let args = vec![
            t(&[1, 2], &[2.0, 3.0]),
            t(&[2, 1], &[5.0, 7.0]),
            t(&[1], &[1.0]),
            t(&[1], &[1.0]),
            t(&[1, 1], &[10.0]),
        ];
        let out = interp::run(&d, args).unwrap();
        assert_eq!(out, [t(&[1, 2], &[50.0, 70.0]), t(&[2, 1], &[20.0, 30.0]), t(&[1], &[0.0])]);
    }
}
