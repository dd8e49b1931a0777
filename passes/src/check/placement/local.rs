//! What the result of an operation means, given what its operands mean.

use super::meaning::{Basis, Meaning, Shares, unite};
use super::rearrange::{rearranged, repeated, vanishes};
use super::whole::Whole;
use cranelift_entity::SecondaryMap;
use intwain_ir::ops::{LocalCx, Op};
use intwain_ir::scalar::Reduce;
use intwain_ir::shard::{Factor, FactorDim, FactorKind};
use intwain_ir::{Graph, Layout, NodeId, Type, Value};
use std::ops::Range;

/// Most meanings kept for a value.
const MAX_MEANINGS: usize = 8;

pub(super) type Meanings = SecondaryMap<Value, Vec<Meaning>>;

/// The meanings of every result of a node, or why it has none.
pub(super) fn meanings(
    whole: &Whole<'_>,
    local: &Graph,
    id: NodeId,
    known: &Meanings,
) -> Result<Vec<Vec<Meaning>>, String> {
    let node = &local.nodes[id];
    let mut results: Vec<Vec<Meaning>> = vec![Vec::new(); node.results.len()];
    // What repeats one element is told by that element, wherever it stands.
    if let (Some(x), [only]) = (repeated(local, id, known), results.as_mut_slice()) {
        only.push(Meaning::Splat(x));
        return Ok(results);
    }
    if let (Some(zero), [only]) = (vanishes(local, id, known), results.as_mut_slice()) {
        only.push(zero);
    }
    let mut problem = None;
    for candidate in candidates(whole, local, id, known) {
        let matched = Match { whole, local, id, node: candidate, known };
        match matched.results() {
            Ok(found) => add(&mut results, found),
            Err(why) => problem = problem.or(Some(why)),
        }
    }
    if let [only] = results.as_mut_slice() {
        only.extend(rearranged(whole, local, id, known));
        only.truncate(MAX_MEANINGS);
    }
    if results.iter().any(Vec::is_empty) {
        let args: Vec<&[Meaning]> = node.args.iter().map(|a| known[*a].as_slice()).collect();
        return Err(problem.unwrap_or_else(|| format!("is no part of the model; its operands are {args:?}")));
    }
    Ok(results)
}

fn add(results: &mut [Vec<Meaning>], found: Vec<Vec<Meaning>>) {
    for (all, new) in results.iter_mut().zip(found) {
        for meaning in new {
            if !all.contains(&meaning) && all.len() < MAX_MEANINGS {
                all.push(meaning);
            }
        }
    }
}

/// Nodes of the whole graph that the node may be: same operation, operands that fit.
fn candidates(whole: &Whole<'_>, local: &Graph, id: NodeId, known: &Meanings) -> Vec<NodeId> {
    let node = &local.nodes[id];
    let of_value = |m: &Meaning| match m {
        Meaning::Full(v)
        | Meaning::Piece { value: v, .. }
        | Meaning::Uniform { value: v, .. }
        | Meaning::Term { value: v, .. } => Some(*v),
        Meaning::Splat(_) => None,
    };
    let anchor = node.args.iter().find(|a| known[**a].iter().any(|m| of_value(m).is_some()));
    let mut found: Vec<NodeId> = match anchor {
        Some(arg) => known[*arg].iter().filter_map(of_value).flat_map(|v| whole.readers(v)).copied().collect(),
        None => whole.named(node.op.name()).to_vec(),
    };
    found.sort_unstable();
    found.dedup();
    found.retain(|&n| {
        let other = &whole.graph.nodes[n];
        other.op.name() == node.op.name()
            && other.args.len() == node.args.len()
            && other.results.len() == node.results.len()
            && other.args.iter().zip(&node.args).all(|(w, l)| fits(whole, *w, &known[*l]))
    });
    found
}

fn fits(whole: &Whole<'_>, value: Value, meanings: &[Meaning]) -> bool {
    let canonical = whole.canonical(value);
    meanings.iter().any(|m| m.concerns(canonical) || matches!(m, Meaning::Splat(_)))
}

/// A part of a factor.
#[derive(Clone, Debug, PartialEq)]
enum Units {
    /// These units.
    Range(Range<usize>),
    /// So many units, no matter which.
    Any(usize),
}

/// A node of a device held against a node of the whole graph.
struct Match<'a> {
    whole: &'a Whole<'a>,
    local: &'a Graph,
    id: NodeId,
    node: NodeId,
    known: &'a Meanings,
}

impl Match<'_> {
    /// What the results mean if the rule of the whole node allows it.
    fn results(&self) -> Result<Vec<Vec<Meaning>>, String> {
        let mut found: Vec<Vec<Meaning>> = vec![Vec::new(); self.local.nodes[self.id].results.len()];
        if let Some(results) = self.all_full() {
            add(&mut found, results.into_iter().map(|m| vec![m]).collect());
        }
        for (at, factor) in self.whole.rule(self.node).factors.iter().enumerate() {
            for units in self.anywhere(at, factor).map_or_else(|| self.units(factor), |any| vec![any]) {
                if let Some(results) = self.cut(at, factor, &units) {
                    add(&mut found, results.into_iter().map(|m| vec![m]).collect());
                }
            }
        }
        if let Some(results) = self.linear() {
            add(&mut found, results.into_iter().map(|m| vec![m]).collect());
        }
        if found.iter().any(Vec::is_empty) { Err(self.refusal()) } else { Ok(found) }
    }

    fn refusal(&self) -> String {
        let node = &self.local.nodes[self.id];
        let partial = |a: &&Value| known_term(&self.known[**a]);
        if let Some(arg) = node.args.iter().find(partial) {
            return format!("`{}` reads the partial value {arg}, which must be combined first", node.op.name());
        }
        let operands: Vec<&[Meaning]> = node.args.iter().map(|a| self.known[*a].as_slice()).collect();
        format!("does not compute {:?} from {operands:?}", self.whole.graph.nodes[self.node].results.as_slice())
    }

    fn arg(&self, at: usize) -> (Value, &[Meaning]) {
        let whole = self.whole.canonical(self.whole.graph.nodes[self.node].args[at]);
        (whole, &self.known[self.local.nodes[self.id].args[at]])
    }

    fn results_of(&self) -> impl Iterator<Item = Value> {
        self.whole.graph.nodes[self.node].results.iter().copied()
    }

    fn extent(&self, value: Value, dim: usize) -> usize {
        self.whole.graph.shape(value)[dim]
    }

    /// Whether an operand is whole.
    fn is_full(&self, at: usize) -> bool {
        let (value, meanings) = self.arg(at);
        let ty = self.whole.graph.ty(value);
        let same_type = self.local.ty(self.local.nodes[self.id].args[at]) == ty;
        same_type
            && meanings.iter().any(|m| match m {
                Meaning::Splat(x) => self.whole.splat(value) == Some(*x),
                Meaning::Full(_) | Meaning::Piece { .. } | Meaning::Uniform { .. } | Meaning::Term { .. } => {
                    m.as_full(|v, d| self.extent(v, d)) == Some(value)
                }
            })
    }

    fn all_full(&self) -> Option<Vec<Meaning>> {
        let n = self.local.nodes[self.id].args.len();
        if !(0..n).all(|at| self.is_full(at)) {
            return None;
        }
        let args = (0..n).map(|at| Meaning::Full(self.arg(at).0)).collect();
        self.accept(args, self.results_of().map(Meaning::Full).collect())
    }

    /// The parts of a factor that the operands, or without any the result, suggest.
    fn units(&self, factor: &Factor) -> Vec<Units> {
        let mut all = Vec::new();
        let mut repeated = Vec::new();
        for (at, dim) in factor.operands.iter().enumerate() {
            let Some(cut) = dim else { continue };
            let (value, meanings) = self.arg(at);
            for meaning in meanings {
                match meaning {
                    Meaning::Piece { value: v, dim, range } if (*v, *dim) == (value, cut.dim) => {
                        all.extend(cut.units(range).map(Units::Range));
                    }
                    Meaning::Uniform { value: v, dim, length } if (*v, *dim) == (value, cut.dim) => {
                        repeated = any_place(cut, *length, factor.extent);
                    }
                    // Equal elements are the part at any place.
                    Meaning::Splat(x) if self.whole.splat(value) == Some(*x) => {
                        let held = self.local.shape(self.local.nodes[self.id].args[at]).get(cut.dim);
                        repeated = held.map_or(Vec::new(), |length| any_place(cut, *length, factor.extent));
                    }
                    Meaning::Piece { .. }
                    | Meaning::Uniform { .. }
                    | Meaning::Full(_)
                    | Meaning::Term { .. }
                    | Meaning::Splat(_) => {}
                }
            }
        }
        if all.is_empty() {
            all.extend(repeated);
        }
        if all.is_empty() && factor.operands.iter().all(Option::is_none) {
            all = self.suggested_by_result(factor);
        }
        all.dedup();
        all
    }

    /// A node whose operands are whole may make only a part of its result: from nothing, a certain part; from operands
    /// that the factor does not cut, any part, for the result repeats along it.
    fn suggested_by_result(&self, factor: &Factor) -> Vec<Units> {
        let local = self.local.ty(self.local.nodes[self.id].results[0]);
        let Some(Some(cut)) = factor.results.first() else { return Vec::new() };
        let extent = self.whole.graph.result_types(self.node)[0].shape[cut.dim];
        let Some(&length) = local.shape.get(cut.dim) else { return Vec::new() };
        if length >= extent || !length.is_multiple_of(cut.unit) {
            return Vec::new();
        }
        let (units, length) = (extent / cut.unit, length / cut.unit);
        let place = |start: usize| Units::Range(start..start + length);
        if !factor.operands.is_empty()
            && self.localized_at(cut, 0, length) == self.localized_at(cut, units - length, length)
        {
            return vec![Units::Any(length)];
        }
        // Some parts tell where they begin; there may be too many places to try.
        let begins = match (&self.whole.graph.nodes[self.node].op, &self.local.nodes[self.id].op) {
            (Op::ScatterAdd(all), Op::ScatterAdd(part)) => usize::try_from(part.base - all.base).ok(),
            (Op::Random(all), Op::Random(part)) => part.start[cut.dim].checked_sub(all.start[cut.dim]),
            _ => return (0..=units - length).map(place).collect(),
        };
        begins.filter(|start| start + length <= units).map(place).into_iter().collect()
    }

    /// What a device makes of whole operands where it makes so many units of the first result from a certain one on.
    fn localized_at(&self, cut: &FactorDim, start: usize, length: usize) -> Op {
        let graph = self.whole.graph;
        let node = &graph.nodes[self.node];
        let range = cut.positions(&(start..start + length));
        let values =
            node.results.iter().map(|v| (*v, Meaning::Piece { value: *v, dim: cut.dim, range: range.clone() }));
        let (types, layouts): (Vec<Type>, Vec<Layout>) =
            values.map(|(v, m)| (super::shape_of(graph.ty(v), &m), m.layout(graph.shape(v)))).unzip();
        node.op.localize(&LocalCx {
            device: 1,
            args: &graph.arg_types(self.node),
            arg_layouts: &vec![Layout::Replicated; node.args.len()],
            results: &types,
            global_results: &graph.result_types(self.node),
            result_layouts: &layouts,
        })
    }

    /// What is made from nothing, and is the same part wherever that begins, repeats along the factor. Only
    /// [`MAX_MEANINGS`] of its places would be kept otherwise, maybe not the one that a reader needs.
    fn anywhere(&self, at: usize, factor: &Factor) -> Option<Units> {
        let single = factor.results.iter().flatten().all(|cut| cut.unit == 1);
        if !factor.operands.is_empty() || !single {
            return None;
        }
        let places = self.suggested_by_result(factor);
        let Some(Units::Range(first)) = places.first() else { return None };
        let same = places.iter().all(|units| self.cut(at, factor, units).is_some());
        same.then_some(Units::Any(first.len()))
    }

    /// The results if every operand is the part that a cut along the factor asks for.
    fn cut(&self, at: usize, factor: &Factor, units: &Units) -> Option<Vec<Meaning>> {
        let (units, anywhere) = match units {
            Units::Range(range) => (range.clone(), false),
            Units::Any(length) => (0..*length, true),
        };
        let mut args = Vec::new();
        for (i, dim) in factor.operands.iter().enumerate() {
            let (value, meanings) = self.arg(i);
            let Some(dim) = dim else {
                self.is_full(i).then_some(())?;
                args.push(Meaning::Full(value));
                continue;
            };
            let range = dim.positions(&units);
            let want = Meaning::Piece { value, dim: dim.dim, range: range.clone() };
            let held = self.local.ty(self.local.nodes[self.id].args[i]);
            let fits_shape = *held == super::shape_of(self.whole.graph.ty(value), &want);
            let is_whole = range == (0..self.extent(value, dim.dim)) && self.is_full(i);
            let holds = |m: &Meaning| match m {
                Meaning::Splat(x) => self.whole.splat(value) == Some(*x),
                Meaning::Uniform { .. } => m.is_piece(value, dim.dim, &range),
                Meaning::Piece { .. } => !anywhere && *m == want,
                Meaning::Full(_) | Meaning::Term { .. } => false,
            };
            if !fits_shape || !(is_whole && !anywhere || meanings.iter().any(holds)) {
                return None;
            }
            args.push(want);
        }
        let results = factor.results.iter().zip(self.results_of()).map(|(dim, value)| match (dim, factor.kind) {
            (Some(d), _) if anywhere => Some(Meaning::Uniform { value, dim: d.dim, length: units.len() * d.unit }),
            (Some(d), _) => Some(Meaning::Piece { value, dim: d.dim, range: d.positions(&units) }),
            (None, FactorKind::Pass) => Some(Meaning::Full(value)),
            (None, FactorKind::Reduce(_) | FactorKind::Lookup) if anywhere => None,
            (None, FactorKind::Reduce(op)) => Some(self.term(value, op, at, &units, factor.extent)),
            (None, FactorKind::Lookup) => Some(self.term(value, Reduce::Sum, at, &units, factor.extent)),
        });
        self.accept(args, results.collect::<Option<Vec<Meaning>>>()?)
    }

    fn term(&self, value: Value, op: Reduce, factor: usize, units: &Range<usize>, extent: usize) -> Meaning {
        Meaning::Term { value, op, shares: [(Basis::Factor(value, factor), (units.clone(), extent))].into() }
    }

    /// Results that are addends because a linear set of operands are.
    fn linear(&self) -> Option<Vec<Meaning>> {
        let n = self.local.nodes[self.id].args.len();
        for &set in &self.whole.rule(self.node).linear {
            let mut shares = Shares::new();
            let (mut args, mut partial, mut fine) = (Vec::new(), false, true);
            for at in 0..n {
                let (value, meanings) = self.arg(at);
                if set & (1 << at) == 0 {
                    fine &= self.is_full(at);
                    args.push(Meaning::Full(value));
                    continue;
                }
                partial |= known_term(meanings) || meanings.iter().any(|m| matches!(m, Meaning::Splat(_)));
                let share = meanings.iter().find_map(|m| self.addend(value, m));
                match share.and_then(|s| unite(shares.clone(), &s)) {
                    Some(all) => shares = all,
                    None => fine = false,
                }
                args.push(Meaning::Term { value, op: Reduce::Sum, shares: Shares::new() });
            }
            if fine && partial {
                let results =
                    self.results_of().map(|value| Meaning::Term { value, op: Reduce::Sum, shares: shares.clone() });
                if let Some(results) = self.accept(args, results.collect()) {
                    return Some(results);
                }
            }
        }
        None
    }

    /// An operand as an addend. Zeros that the model itself adds are complete wherever they are.
    fn addend(&self, value: Value, meaning: &Meaning) -> Option<Shares> {
        match meaning {
            Meaning::Splat(x) if self.whole.splat(value) == Some(*x) => match *x == Reduce::Sum.identity(x.dtype()) {
                true => Some(Shares::new()),
                false => Meaning::Full(value).as_term(value, Reduce::Sum),
            },
            Meaning::Splat(_)
            | Meaning::Full(_)
            | Meaning::Piece { .. }
            | Meaning::Uniform { .. }
            | Meaning::Term { .. } => meaning.as_term(value, Reduce::Sum),
        }
    }

    /// The results, if the operation and their types are those that the whole node has on such parts.
    fn accept(&self, args: Vec<Meaning>, results: Vec<Meaning>) -> Option<Vec<Meaning>> {
        let graph = self.whole.graph;
        let node = &graph.nodes[self.node];
        let have = self.local.result_types(self.id);
        let parts: Vec<Type> =
            results.iter().zip(&node.results).map(|(m, v)| super::shape_of(graph.ty(*v), m)).collect();
        if parts.iter().zip(&have).any(|(want, got)| want != *got) {
            return None;
        }
        let layouts = |meanings: &[Meaning], values: &[Value]| -> Vec<Layout> {
            meanings.iter().zip(values).map(|(m, v)| m.layout(graph.shape(*v))).collect()
        };
        let (arg_layouts, result_layouts) = (layouts(&args, &node.args), layouts(&results, &node.results));
        let expected = node.op.localize(&LocalCx {
            device: 1,
            args: &graph.arg_types(self.node),
            arg_layouts: &arg_layouts,
            results: &parts,
            global_results: &graph.result_types(self.node),
            result_layouts: &result_layouts,
        });
        (expected == self.local.nodes[self.id].op).then_some(results)
    }
}

/// The units that `length` equal positions of a dimension can be: no matter which, but where the last unit is shorter.
fn any_place(dim: &FactorDim, length: usize, units: usize) -> Vec<Units> {
    if dim.end.is_none() {
        return if length.is_multiple_of(dim.unit) { vec![Units::Any(length / dim.unit)] } else { Vec::new() };
    }
    let count = length.div_ceil(dim.unit);
    let starts = 0..=units.saturating_sub(count);
    let ranges = starts.map(|start| start..start + count).filter(|r| dim.positions(r).len() == length);
    ranges.take(MAX_MEANINGS).map(Units::Range).collect()
}

fn known_term(meanings: &[Meaning]) -> bool {
    !meanings.is_empty() && meanings.iter().all(|m| matches!(m, Meaning::Term { .. }))
}
