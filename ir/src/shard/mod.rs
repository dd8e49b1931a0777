//! How values are divided over devices: layouts, and the rule of each operation for them.

mod layout;
mod rule;

pub(crate) use layout::total;
pub use layout::{Layout, Sizes};
pub use rule::{Factor, FactorDim, FactorKind, ShardingRule};
