//! The graph: operations on tensors, in an order in which definitions precede uses.
//!
//! A graph has parameters (inputs, weights, states), nodes and outputs. Nodes are appended only; passes rebuild the
//! graph through [`Rewriter`](crate::Rewriter). Ids are dense, in creation order, and never cross graphs. Types equal
//! what the operation infers. What depends on weights alone is the *prepare* region: it runs once when weights load.

use crate::ops::{Op, TypeError};
use crate::shard::Layout;
use crate::{Stage, Type};
use cranelift_entity::{PrimaryMap, entity_impl};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// A tensor in a graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(u32);
entity_impl!(Value, "%");

/// An operation in a graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);
entity_impl!(NodeId, "n");

/// Where a node comes from: the path of a Keras layer such as `encoder/dense_1`, empty for what the compiler adds; in a
/// step of training that is pipelined, its place there; and whether it computes again what another node computed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Origin {
    path: Option<Arc<str>>,
    turn: Option<Turn>,
    again: bool,
}

/// When a node of a pipelined step is computed, and where: `1.3.backward` is the third micro-batch's way back through
/// segment 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Turn {
    /// The segment, which is the device.
    pub segment: usize,
    /// The micro-batch.
    pub micro_batch: usize,
    /// Which way.
    pub way: Way,
}

/// The parts of a step for one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// The model.
    Forward,
    /// Its gradients.
    Backward,
}

impl Way {
    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Way::Forward => "forward",
            Way::Backward => "backward",
        }
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.segment, self.micro_batch, self.way.name())
    }
}

impl std::str::FromStr for Turn {
    type Err = ();

    fn from_str(text: &str) -> Result<Turn, ()> {
        let (segment, rest) = text.split_once('.').ok_or(())?;
        let (micro_batch, name) = rest.split_once('.').ok_or(())?;
        let way = [Way::Forward, Way::Backward].into_iter().find(|w| w.name() == name).ok_or(())?;
        let number = |text: &str| text.parse().map_err(|_| ());
        Ok(Turn { segment: number(segment)?, micro_batch: number(micro_batch)?, way })
    }
}

impl Origin {
    /// The origin of a layer.
    pub fn new(path: &str) -> Origin {
        Origin { path: (!path.is_empty()).then(|| Arc::from(path)), ..Origin::default() }
    }

    /// The layer's path, empty if there is none.
    pub fn path(&self) -> &str {
        self.path.as_deref().unwrap_or("")
    }

    /// The place in a pipelined step.
    pub fn turn(&self) -> Option<Turn> {
        self.turn
    }

    /// The same layer in that place.
    pub fn in_turn(&self, turn: Option<Turn>) -> Origin {
        Origin { turn, ..self.clone() }
    }

    /// Whether the node computes again what an equal node computed before, so that its result need not be kept between: it
    /// is not to be merged with that node.
    pub fn is_again(&self) -> bool {
        self.again
    }

    /// The same layer and place, computing again.
    pub fn again(&self) -> Origin {
        Origin { again: true, ..self.clone() }
    }

    /// Where the gradient of a node belongs.
    pub fn backward(&self) -> Origin {
        self.in_turn(self.turn.map(|t| Turn { way: Way::Backward, ..t }))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path())
    }
}

/// Where a value is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Def {
    /// A parameter of the graph, by position.
    Param(usize),
    /// A result of a node, by position.
    Node(NodeId, usize),
}

/// A tensor's type, definition and, once placed, layout.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueData {
    /// Element type and shape; of the whole tensor until the graph is Local.
    pub ty: Type,
    /// Where it is defined.
    pub def: Def,
    /// How it is divided over the devices; `None` until chosen, and in Local graphs.
    pub layout: Option<Layout>,
}

/// An operation with its operands and results.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// Operands.
    pub args: SmallVec<[Value; 3]>,
    /// Results.
    pub results: SmallVec<[Value; 1]>,
    /// The layer it comes from.
    pub origin: Origin,
}

/// What a parameter is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// Given with every call.
    Input {
        /// Whether dimension 0 is the row (batch) axis, kept apart from every other row up to the outputs.
        rows: Rows,
    },
    /// Given once. The name is the Keras variable's path.
    Weight {
        /// Whether training changes it.
        trainable: Trainable,
    },
    /// Kept from one call to the next: starts as the weight or value it names, becomes `next`.
    State {
        /// The value it has after the call.
        next: Option<Value>,
    },
}

/// Whether dimension 0 is the row axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Dimension 0 counts rows.
    Batched,
    /// The input has no row axis.
    Whole,
}

/// Whether training changes a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trainable {
    /// It does.
    Yes,
    /// It does not.
    Frozen,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its value in the graph.
    pub value: Value,
    /// Unique among the parameters.
    pub name: Arc<str>,
    /// What it is.
    pub kind: ParamKind,
}

/// A result of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The value.
    pub value: Value,
    /// Unique among the outputs.
    pub name: Arc<str>,
}

/// A computation on tensors. See the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The model's name.
    pub name: Arc<str>,
    /// What holds of the graph.
    pub stage: Stage,
    /// Number of devices that layouts speak of; 1 until placed.
    pub devices: usize,
    /// The device that a Local graph is for.
    pub device: usize,
    /// Inputs, weights and states.
    pub params: Vec<Param>,
    /// Operations, in executable order.
    pub nodes: PrimaryMap<NodeId, Node>,
    /// Tensors.
    pub values: PrimaryMap<Value, ValueData>,
    /// Results.
    pub outputs: Vec<Output>,
    /// The layer that new nodes come from.
    pub origin: Origin,
}

impl Graph {
    /// An empty graph at stage Imported.
    pub fn new(name: &str) -> Graph {
        Graph {
            name: Arc::from(name),
            stage: Stage::Imported,
            devices: 1,
            device: 0,
            params: Vec::new(),
            nodes: PrimaryMap::new(),
            values: PrimaryMap::new(),
            outputs: Vec::new(),
            origin: Origin::default(),
        }
    }

    /// Adds a parameter.
    pub fn param(&mut self, name: &str, ty: Type, kind: ParamKind) -> Value {
        let def = Def::Param(self.params.len());
        let value = self.values.push(ValueData { ty, def, layout: None });
        self.params.push(Param { value, name: Arc::from(name), kind });
        value
    }

    /// Adds an input.
    pub fn input(&mut self, name: &str, ty: Type, rows: Rows) -> Value {
        self.param(name, ty, ParamKind::Input { rows })
    }

    /// Adds a weight.
    pub fn weight(&mut self, name: &str, ty: Type, trainable: Trainable) -> Value {
        self.param(name, ty, ParamKind::Weight { trainable })
    }

    /// Declares a result.
    pub fn output(&mut self, name: &str, value: Value) {
        self.outputs.push(Output { value, name: Arc::from(name) });
    }

    /// Appends an operation and returns its results.
    pub fn push_all(&mut self, op: impl Into<Op>, args: &[Value]) -> Result<SmallVec<[Value; 1]>, TypeError> {
        let op = op.into();
        let types = {
            let tys: Vec<&Type> = args.iter().map(|a| &self.values[*a].ty).collect();
            op.infer(&tys).map_err(|e| e.of(op.name()))?
        };
        if let Some(problem) = types.iter().find_map(Type::refused) {
            return Err(TypeError::new(problem).of(op.name()));
        }
        let id = self.nodes.next_key();
        let results: SmallVec<[Value; 1]> = types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| self.values.push(ValueData { ty, def: Def::Node(id, i), layout: None }))
            .collect();
        let origin = self.origin.clone();
        self.nodes.push(Node { op, args: args.into(), results: results.clone(), origin });
        Ok(results)
    }

    /// Appends an operation with one result.
    pub fn push(&mut self, op: impl Into<Op>, args: &[Value]) -> Result<Value, TypeError> {
        self.push_all(op, args).map(|r| r[0])
    }

    /// A value's type.
    pub fn ty(&self, value: Value) -> &Type {
        &self.values[value].ty
    }

    /// A value's extents.
    pub fn shape(&self, value: Value) -> &crate::Shape {
        &self.values[value].ty.shape
    }

    /// The node that defines a value.
    pub fn def_node(&self, value: Value) -> Option<NodeId> {
        match self.values[value].def {
            Def::Node(n, _) => Some(n),
            Def::Param(_) => None,
        }
    }

    /// A value's layout; replicated if none was chosen.
    pub fn layout(&self, value: Value) -> Layout {
        self.values[value].layout.clone().unwrap_or(Layout::Replicated)
    }

    /// Types of a node's operands.
    pub fn arg_types(&self, node: NodeId) -> Vec<&Type> {
        self.nodes[node].args.iter().map(|a| self.ty(*a)).collect()
    }

    /// Types of a node's results.
    pub fn result_types(&self, node: NodeId) -> Vec<&Type> {
        self.nodes[node].results.iter().map(|a| self.ty(*a)).collect()
    }

    /// For each value, the nodes that use it, once per use, in order.
    pub fn uses(&self) -> cranelift_entity::SecondaryMap<Value, Vec<NodeId>> {
        let mut uses = cranelift_entity::SecondaryMap::new();
        for (id, node) in &self.nodes {
            for a in &node.args {
                let list: &mut Vec<NodeId> = &mut uses[*a];
                list.push(id);
            }
        }
        uses
    }

    /// For each value, whether it depends on weights and constants only: such values are computed once, when weights
    /// load.
    pub fn prepared(&self) -> cranelift_entity::SecondaryMap<Value, bool> {
        let mut prepared = cranelift_entity::SecondaryMap::new();
        for p in &self.params {
            prepared[p.value] = matches!(p.kind, ParamKind::Weight { .. });
        }
        for node in self.nodes.values() {
            let all = node.args.iter().all(|a| prepared[*a]) && !node.op.is_communication();
            for r in &node.results {
                prepared[*r] = all;
            }
        }
        prepared
    }

    /// The weights, in order.
    pub fn weights(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|p| matches!(p.kind, ParamKind::Weight { .. }))
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|p| matches!(p.kind, ParamKind::Input { .. }))
    }
}
