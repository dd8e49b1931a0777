//! What holds of a graph after which pass. Each stage keeps what the stages before it established.

use std::fmt;

/// How far a graph has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Types are inferred and every node has an origin.
    Imported,
    /// Every value has a layout.
    Sharded,
    /// Every node's layouts satisfy its rule; all communication is a node.
    Explicit,
    /// The graph is one device's: types are local, no layouts are left.
    Local,
}

impl Stage {
    /// Every stage in order.
    pub const ALL: [Stage; 4] = [Stage::Imported, Stage::Sharded, Stage::Explicit, Stage::Local];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Imported => "imported",
            Stage::Sharded => "sharded",
            Stage::Explicit => "explicit",
            Stage::Local => "local",
        }
    }

    /// The stage with this text name.
    pub fn from_name(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|s| s.name() == name)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
