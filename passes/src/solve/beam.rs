//! Search of a residue whose tables are too large to eliminate: node by node, the cheapest partial assignments are kept.

use super::NodeIdx;
use super::table::Table;

/// Writes good states for the nodes of `residue` into `states`; `None` if every kept assignment became forbidden.
pub(super) fn run(
    sizes: &[usize],
    residue: &[NodeIdx],
    tables: &[Table],
    width: usize,
    states: &mut [usize],
) -> Option<()> {
    // A table is charged when the last of its nodes is assigned.
    let position = |node: NodeIdx| residue.binary_search(&node).expect("tables are over the residue");
    let mut charged: Vec<Vec<&Table>> = vec![Vec::new(); residue.len()];
    for table in tables {
        let last = table.scope.iter().map(|&n| position(n)).max().expect("a table mentions a node");
        charged[last].push(table);
    }
    let mut beam: Vec<(f64, Vec<usize>)> = vec![(0.0, states.to_vec())];
    for (at, &node) in residue.iter().enumerate() {
        let mut next = Vec::with_capacity(beam.len() * sizes[node]);
        for (cost, assignment) in &beam {
            for state in 0..sizes[node] {
                let mut extended = assignment.clone();
                extended[node] = state;
                let cost = cost + charged[at].iter().map(|t| t.at(sizes, &extended)).sum::<f64>();
                if cost.is_finite() {
                    next.push((cost, extended));
                }
            }
        }
        next.sort_by(|a, b| a.0.total_cmp(&b.0));
        next.truncate(width);
        beam = next;
    }
    let (_, best) = beam.into_iter().next()?;
    states.copy_from_slice(&best);
    Some(())
}
