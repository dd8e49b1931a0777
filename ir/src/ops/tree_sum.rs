//! `tree_sum`: a sum along the first dimension in the order of a balanced tree.

use super::prelude::*;
use crate::compute::{ExprId, tree_left};
use crate::scalar::Reduce as R;

/// The sum over dimension 0 in the order of [`Order::Tree`] over Σ `spans` leaves. Item i stands for `spans[i]` consecutive
/// leaves that are added up already, a node of the tree; where all spans are 1, the items are the leaves. So a part of
/// the leaves can be reduced to its nodes where it is, and the sum of the nodes has the bits of the sum of the leaves.
/// Sums of f16 and bf16 are accumulated in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeSum {
    /// Leaves of each item.
    pub spans: Vec<usize>,
}

/// A tree over items.
enum Node {
    Item(usize),
    Sum(Box<(Node, Node)>),
}

impl TreeSum {
    /// The sum of `count` items that are the leaves.
    pub fn of_leaves(count: usize) -> TreeSum {
        TreeSum { spans: vec![1; count] }
    }

    fn all_leaves(&self) -> bool {
        self.spans.iter().all(|s| *s == 1)
    }

    /// The tree over all items; `None` if some are not nodes of the tree over the leaves.
    fn tree(&self) -> Option<Node> {
        let leaves = self.spans.iter().try_fold(0usize, |sum, s| sum.checked_add(*s))?;
        let mut items = self.spans.iter().copied().enumerate();
        let tree = node(&mut items, leaves)?;
        items.next().is_none().then_some(tree)
    }
}

/// The node over the next `leaves` leaves.
fn node(items: &mut (impl Iterator<Item = (usize, usize)> + Clone), leaves: usize) -> Option<Node> {
    let (item, span) = items.clone().next()?;
    if span == leaves {
        items.next();
        return Some(Node::Item(item));
    }
    if leaves < 2 {
        return None;
    }
    let left = tree_left(leaves);
    Some(Node::Sum(Box::new((node(items, left)?, node(items, leaves - left)?))))
}

impl OpDef for TreeSum {
    const NAME: &'static str = "tree_sum";
    attributes!(spans);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        ensure(x.rank() > 0, || format!("{x} has no dimension to sum over"))?;
        let (spans, items) = (self.spans.len(), x.shape[0]);
        ensure(spans == items, || format!("{spans} spans for {items} items"))?;
        let fits = self.all_leaves() || self.tree().is_some();
        ensure(fits, || format!("spans {:?} are not those of nodes of one tree", self.spans))?;
        Ok(smallvec![x.with_shape(Shape::new(x.shape[1..].iter().copied()))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let x = args[0];
        let mut c = Compute::new(&results[0].shape);
        let rest = c.position();
        let item = |c: &mut Compute, at: Index| {
            let load = c.load(0, x, std::iter::once(at).chain(rest.iter().cloned()).collect());
            c.cast(x.dtype.accumulator(), load)
        };
        let sum = match self.tree() {
            Some(tree) if !self.all_leaves() => add_up(&mut c, &tree, &item),
            _ => {
                let axis = c.reduce_axis(self.spans.len());
                let leaf = item(&mut c, Index::axis(axis));
                c.reduce(R::Sum, vec![axis], Order::Tree, leaf)
            }
        };
        let y = c.cast(x.dtype, sum);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (ty, dy) = (cx.ty(0), cx.dy());
        if !ty.dtype.is_float() {
            return Ok(vec![None]);
        }
        let kept: Vec<usize> = (1..ty.rank()).collect();
        Ok(vec![Some(cx.g.broadcast(dy, &ty.shape, &kept)?)])
    }
}

/// The sum of a node's items.
fn add_up(c: &mut Compute, node: &Node, item: &dyn Fn(&mut Compute, Index) -> ExprId) -> ExprId {
    match node {
        Node::Item(i) => item(c, Index::constant(*i as i64)),
        Node::Sum(parts) => {
            let (left, right) = (add_up(c, &parts.0, item), add_up(c, &parts.1, item));
            c.binary(R::Sum.combine(), left, right)
        }
    }
}
