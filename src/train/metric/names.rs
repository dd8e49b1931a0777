//! The names under which a model reports its metrics.

use std::collections::BTreeMap;

/// A metric in the order in which it was compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The output it is for, where the model has several.
    pub output: Option<&'a str>,
    /// Its own name.
    pub name: &'a str,
}

impl Listed<'_> {
    fn prefixed(&self, name: &str) -> String {
        self.output.map_or_else(|| name.to_string(), |output| format!("{output}_{name}"))
    }
}

/// The names of `metrics`, then of `weighted_metrics`: the output's before the metric's, a number behind what occurs again, and
/// `weighted_` before a weighted one of a name that is taken.
pub fn reported(metrics: &[Listed<'_>], weighted: &[Listed<'_>]) -> Vec<String> {
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let mut names = Vec::new();
    let numbered = |taken: &mut BTreeMap<String, usize>, name: String| {
        let times = taken.entry(name.clone()).or_insert(0);
        *times += 1;
        if *times == 1 { name } else { format!("{name}_{}", *times - 1) }
    };
    for metric in metrics {
        names.push(numbered(&mut taken, metric.prefixed(metric.name)));
    }
    for metric in weighted {
        let name = metric.prefixed(metric.name);
        let free = !taken.contains_key(&name);
        let name = if free { name } else { metric.prefixed(&format!("weighted_{}", metric.name)) };
        names.push(numbered(&mut taken, name));
    }
    names
}
