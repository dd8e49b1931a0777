//! Rebuilding a graph: passes copy nodes into a new graph, changing what they must.

use crate::ops::{Op, TypeError};
use crate::{Graph, NodeId, Output, ParamKind, Value};
use cranelift_entity::SecondaryMap;
use smallvec::SmallVec;

/// Copies a graph node by node. Ids of the new graph are dense and definitions precede uses.
#[derive(Debug)]
pub struct Rewriter<'g> {
    old: &'g Graph,
    /// The graph being built.
    pub new: Graph,
    map: SecondaryMap<Value, Option<Value>>,
}

impl<'g> Rewriter<'g> {
    /// Starts a graph with the old one's parameters.
    pub fn new(old: &'g Graph) -> Rewriter<'g> {
        let mut new = Graph::new(&old.name);
        (new.stage, new.devices, new.device) = (old.stage, old.devices, old.device);
        let mut rw = Rewriter::onto(old, new);
        for p in &old.params {
            let v = rw.new.param(&p.name, old.ty(p.value).clone(), p.kind.clone());
            rw.new.values[v].layout = old.values[p.value].layout.clone();
            rw.map[p.value] = Some(v);
        }
        rw
    }

    /// Starts copying into a graph; what stands for the old one's parameters is to be set.
    pub fn onto(old: &'g Graph, new: Graph) -> Rewriter<'g> {
        Rewriter { old, new, map: SecondaryMap::new() }
    }

    /// The graph being copied.
    pub fn old(&self) -> &'g Graph {
        self.old
    }

    /// The new value that stands for an old one.
    ///
    /// # Panics
    /// If the old value's node was not copied yet.
    pub fn value(&self, old: Value) -> Value {
        self.map[old].expect("values are mapped in order")
    }

    /// Whether an old value has a new one.
    pub fn has(&self, old: Value) -> bool {
        self.map[old].is_some()
    }

    /// Makes a new value stand for an old one.
    pub fn set(&mut self, old: Value, new: Value) {
        self.map[old] = Some(new);
    }

    /// The new operands of an old node.
    pub fn args(&self, node: NodeId) -> SmallVec<[Value; 3]> {
        self.old.nodes[node].args.iter().map(|a| self.value(*a)).collect()
    }

    /// Copies a node as it is.
    pub fn copy(&mut self, node: NodeId) -> Result<(), TypeError> {
        let args = self.args(node);
        self.copy_with(node, self.old.nodes[node].op.clone(), &args)
    }

    /// Copies a node with another operation or operands; origin and layouts are kept.
    pub fn copy_with(&mut self, node: NodeId, op: Op, args: &[Value]) -> Result<(), TypeError> {
        let old = &self.old.nodes[node];
        self.new.origin = old.origin.clone();
        let results = self.new.push_all(op, args)?;
        for (&o, &n) in old.results.iter().zip(&results) {
            self.new.values[n].layout = self.old.values[o].layout.clone();
            self.map[o] = Some(n);
        }
        Ok(())
    }

    /// Maps outputs and states and gives the new graph.
    pub fn finish(mut self) -> Graph {
        for o in &self.old.outputs {
            let value = self.value(o.value);
            self.new.outputs.push(Output { value, name: o.name.clone() });
        }
        for i in 0..self.old.params.len() {
            if let ParamKind::State { next: Some(next) } = self.old.params[i].kind {
                self.new.params[i].kind = ParamKind::State { next: Some(self.value(next)) };
            }
        }
        self.new.origin = self.old.origin.clone();
        self.new
    }
}
