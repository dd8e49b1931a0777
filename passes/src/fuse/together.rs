//! Values that are kept anyway and are made element by element for a reader that works element by element too: one kernel
//! makes them together with what their reader makes, which then does not load them.
//!
//! So the moments of an optimizer and the variable that they update take one pass over memory. Work moves to its reader's
//! place, so nothing between may need it. No expression changes, so results keep their bits.

use super::look::{live_exprs, loads_of};
use super::{Cluster, MAX_EXPRS, MAX_OPERANDS, Pending, Work, drop_unused};
use intwain_ir::compute::{Compute, Expr, ExprId};
use intwain_ir::{Graph, ParamKind, Target, Type, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Most results of a cluster.
const MAX_RESULTS: usize = 8;

/// Clusters on their way together, by their places.
struct Together<'g> {
    graph: &'g Graph,
    target: &'g dyn Target,
    /// What the graph itself reads.
    kept: BTreeSet<Value>,
    /// The place where each value is made.
    made: BTreeMap<Value, usize>,
    /// The places where each value is read.
    readers: BTreeMap<Value, BTreeSet<usize>>,
}

/// The clusters with those in one that can be made together.
pub(super) fn together(graph: &Graph, target: &dyn Target, clusters: Vec<Cluster>) -> Vec<Cluster> {
    let next = |kind: &ParamKind| if let ParamKind::State { next } = kind { *next } else { None };
    let kept = graph.outputs.iter().map(|o| o.value).chain(graph.params.iter().filter_map(|p| next(&p.kind)));
    let mut t = Together { graph, target, kept: kept.collect(), made: BTreeMap::new(), readers: BTreeMap::new() };
    for (at, cluster) in clusters.iter().enumerate() {
        cluster.results.iter().for_each(|r| _ = t.made.insert(*r, at));
        cluster.args.iter().for_each(|a| _ = t.readers.entry(*a).or_default().insert(at));
    }
    let mut clusters: Vec<Option<Cluster>> = clusters.into_iter().map(Some).collect();
    for at in 0..clusters.len() {
        while let Some((from, merged)) = t.better(&clusters, at) {
            t.moved(clusters[from].take(), from, at);
            clusters[at] = Some(merged);
        }
    }
    clusters.into_iter().flatten().collect()
}

impl Together<'_> {
    /// A cluster that goes into the one at `at`, and what they become.
    fn better(&self, clusters: &[Option<Cluster>], at: usize) -> Option<(usize, Cluster)> {
        let reader = clusters[at].as_ref()?;
        reader.args.iter().find_map(|arg| {
            let from = *self.made.get(arg)?;
            let maker = clusters[from].as_ref().filter(|_| from < at)?;
            let free = maker.results.iter().all(|r| {
                let later = self.readers.get(r).is_none_or(|places| places.iter().all(|place| *place >= at));
                later && self.kept.contains(r)
            });
            if !free || maker.region != reader.region || maker.origin.turn() != reader.origin.turn() {
                return None;
            }
            self.merged(reader, maker).map(|merged| (from, merged))
        })
    }

    /// Notes that what was made at `from` is made at `to`.
    fn moved(&mut self, cluster: Option<Cluster>, from: usize, to: usize) {
        let Some(cluster) = cluster else { return };
        for arg in &cluster.args {
            let places = self.readers.entry(*arg).or_default();
            places.remove(&from);
            places.insert(to);
        }
        cluster.results.iter().for_each(|r| _ = self.made.insert(*r, to));
    }

    fn merged(&self, reader: &Cluster, maker: &Cluster) -> Option<Cluster> {
        let (Work::Kernel(reads), Work::Kernel(makes)) = (&reader.work, &maker.work) else { return None };
        if !by_element(reads) || !by_element(makes) || reads.shape() != makes.shape() {
            return None;
        }
        let mut args = reader.args.clone();
        let mut place = |value: Value| {
            args.iter().position(|a| *a == value).unwrap_or_else(|| {
                args.push(value);
                args.len() - 1
            })
        };
        let made: Vec<usize> = maker.results.iter().map(|r| place(*r)).collect();
        let given: Vec<usize> = maker.args.iter().map(|a| place(*a)).collect();
        let in_place = |which: &usize| loads_of(reads, *which).iter().all(|(_, in_place)| *in_place);
        if !made.iter().all(in_place) {
            return None;
        }
        let mut compute = reads.clone();
        let mut results: Vec<ExprId> = compute.results().to_vec();
        for (which, value) in made.iter().zip(&maker.results) {
            let position = compute.position();
            results.push(compute.load(*which, self.graph.ty(*value), position));
        }
        compute = compute.with_results(results);
        for (k, which) in made.iter().enumerate() {
            compute = compute.inline(*which, makes, k, &|operand| given[operand]);
        }
        let mut nodes: Vec<_> = reader.nodes.iter().chain(&maker.nodes).copied().collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut pending = Pending { compute, args, nodes };
        drop_unused(&mut pending);
        let Pending { compute, args, nodes } = pending;
        let results: Vec<Value> = reader.results.iter().chain(&maker.results).copied().collect();
        let types = |values: &[Value]| -> Vec<Type> { values.iter().map(|v| self.graph.ty(*v).clone()).collect() };
        let (operands, made) = (types(&args), types(&results));
        let fits = args.len() <= MAX_OPERANDS
            && results.len() <= MAX_RESULTS
            && compute.exprs().count() <= MAX_EXPRS
            && self.target.can_fuse(&compute, &operands.iter().collect::<Vec<_>>(), &made.iter().collect::<Vec<_>>());
        fits.then(|| Cluster { work: Work::Kernel(compute), args, results, nodes, ..reader.clone() })
    }
}

/// Whether every element of the results is made from elements alone.
fn by_element(c: &Compute) -> bool {
    c.extents().len() == c.rank()
        && live_exprs(c).all(|e| !matches!(e, Expr::Reduce { .. } | Expr::ArgMax { .. } | Expr::Take { .. }))
}

#[cfg(test)]
mod tests {
    use super::super::{fuse, tests::Always};
    use super::*;
    use intwain_ir::{DType, Rows, Tensor, interp};

    /// Momentum and variable of a step, both states.
    #[test]
    fn a_state_is_made_with_the_state_that_follows_from_it() {
        let mut g = Graph::new("m");
        let ty = || Type::new(DType::F32, [3, 4]);
        let gradient = g.input("g", ty(), Rows::Whole);
        let state = ParamKind::State { next: None };
        let (m, w) = (g.param("m", ty(), state.clone()), g.param("w", ty(), state));
        let decayed = g.add(m, m).unwrap();
        let m1 = g.sub(decayed, gradient).unwrap();
        let step = g.mul(m1, m1).unwrap();
        let w1 = g.add(w, step).unwrap();
        g.params[1].kind = ParamKind::State { next: Some(m1) };
        g.params[2].kind = ParamKind::State { next: Some(w1) };
        let clusters = fuse(&g, &Always);
        assert_eq!(clusters.len(), 1, "{clusters:?}");
        let Work::Kernel(compute) = &clusters[0].work else { panic!("a kernel") };
        let given = |seed: f32| Tensor::from_f32([3, 4], &(0..12).map(|i| i as f32 * seed).collect::<Vec<_>>());
        let values = [given(0.3), given(-0.7), given(1.1)];
        let operand = |a: &Value| &values[g.params.iter().position(|p| p.value == *a).unwrap()];
        let operands: Vec<&Tensor> = clusters[0].args.iter().map(operand).collect();
        let types: Vec<&Type> = clusters[0].results.iter().map(|r| g.ty(*r)).collect();
        let got = interp::evaluate(compute, &operands, &types);
        g.output("m1", m1);
        g.output("w1", w1);
        let want = interp::run(&g, values.to_vec()).unwrap();
        let at = |v: Value| clusters[0].results.iter().position(|r| *r == v).unwrap();
        assert_eq!([&got[at(m1)], &got[at(w1)]], [&want[0], &want[1]]);
    }

    /// What another kernel needs before is not moved behind it.
    #[test]
    fn a_value_that_is_needed_before_stays_where_it_is() {
        let mut g = Graph::new("m");
        let ty = || Type::new(DType::F32, [3, 4]);
        let x = g.input("x", ty(), Rows::Whole);
        let y = g.mul(x, x).unwrap();
        let sum = g.reduce(intwain_ir::scalar::Reduce::Sum, y, &[0, 1]).unwrap();
        let whole = g.broadcast_to(sum, &intwain_ir::Shape::from([3, 4])).unwrap();
        let z = g.div(y, whole).unwrap();
        g.output("y", y);
        g.output("z", z);
        assert_eq!(fuse(&g, &Always).len(), 3);
    }
}
