//! Reverse-mode differentiation: gradients are appended to the graph as ordinary operations.

use crate::ops::{GradCx, GradError};
use crate::scalar::Binary;
use crate::{Graph, Value, ops};
use cranelift_entity::{EntityRef, SecondaryMap};

/// Appends the gradients of Σ ⟨output, cotangent⟩ over the pairs given with respect to `wrt`; `None` where it does not
/// depend on a value. A value that several nodes use collects their contributions in reverse order of the nodes.
pub fn backward(g: &mut Graph, seeds: &[(Value, Value)], wrt: &[Value]) -> Result<Vec<Option<Value>>, GradError> {
    let mut needed: SecondaryMap<Value, bool> = SecondaryMap::new();
    for v in wrt {
        needed[*v] = true;
    }
    let nodes: Vec<_> = g.nodes.keys().collect();
    for &n in &nodes {
        let node = &g.nodes[n];
        if node.args.iter().any(|a| needed[*a]) {
            for r in &node.results {
                needed[*r] = true;
            }
        }
    }
    let mut grads: SecondaryMap<Value, Option<Value>> = SecondaryMap::new();
    for &(value, cotangent) in seeds.iter().filter(|(v, _)| needed[*v]) {
        accumulate(g, &mut grads, value, cotangent)?;
    }
    let origin = g.origin.clone();
    for &n in nodes.iter().rev() {
        let node = g.nodes[n].clone();
        let cotangents: Vec<Option<Value>> = node.results.iter().map(|r| grads[*r]).collect();
        if cotangents.iter().all(Option::is_none) || !node.args.iter().any(|a| needed[*a]) {
            continue;
        }
        g.origin = node.origin.backward();
        let mut cx = GradCx { g, args: &node.args, results: &node.results, cotangents: &cotangents };
        let back = node.op.grad(&mut cx)?;
        debug_assert_eq!(back.len(), node.args.len(), "one gradient per operand of {}", node.op.name());
        for (&arg, d) in node.args.iter().zip(back) {
            if let Some(d) = d.filter(|_| needed[arg]) {
                accumulate(g, &mut grads, arg, d)?;
            }
        }
    }
    g.origin = origin;
    debug_assert!(wrt.iter().all(|v| v.index() < g.values.len()));
    Ok(wrt.iter().map(|v| grads[*v]).collect())
}

fn accumulate(
    g: &mut Graph,
    grads: &mut SecondaryMap<Value, Option<Value>>,
    value: Value,
    more: Value,
) -> Result<(), GradError> {
    grads[value] = Some(match grads[value] {
        None => more,
        Some(sum) => g.push(ops::Binary { function: Binary::Add }, &[sum, more])?,
    });
    Ok(())
}
