//! Elements combined in the order of [`Order::Tree`](crate::compute::Order::Tree) as they come.

/// Complete subtrees of falling sizes, as the bits of the number of elements so far say.
pub(super) struct Tree<T, F> {
    combine: F,
    /// Values with the logarithms of their sizes.
    parts: Vec<(u32, T)>,
}

impl<T, F: FnMut(T, T) -> T> Tree<T, F> {
    /// A tree without elements.
    pub(super) fn new(combine: F) -> Tree<T, F> {
        Tree { combine, parts: Vec::new() }
    }

    /// Adds the next element.
    pub(super) fn push(&mut self, x: T) {
        let mut part = (0, x);
        while let Some((_, left)) = self.parts.pop_if(|(size, _)| *size == part.0) {
            part = (part.0 + 1, (self.combine)(left, part.1));
        }
        self.parts.push(part);
    }

    /// All elements combined; `None` if there are none.
    pub(super) fn finish(mut self) -> Option<T> {
        let (_, mut all) = self.parts.pop()?;
        while let Some((_, left)) = self.parts.pop() {
            all = (self.combine)(left, all);
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, level by level.
    fn by_levels(mut level: Vec<String>) -> Option<String> {
        while level.len() > 1 {
            level = level.chunks(2).map(|c| if let [x, y] = c { format!("({x}{y})") } else { c[0].clone() }).collect();
        }
        level.pop()
    }

    #[test]
    fn adjacent_pairs_then_adjacent_pairs_of_those() {
        for n in 0..40 {
            let leaves: Vec<String> = (0..n).map(|i| format!("{i},")).collect();
            let mut tree = Tree::new(|x: String, y: String| format!("({x}{y})"));
            leaves.iter().for_each(|x| tree.push(x.clone()));
            assert_eq!(tree.finish(), by_levels(leaves), "{n}");
        }
    }

    #[test]
    fn the_left_part_is_combined_before_the_rest() {
        fn whole(leaves: &[String]) -> String {
            if let [one] = leaves {
                return one.clone();
            }
            let (left, right) = leaves.split_at(crate::compute::tree_left(leaves.len()));
            format!("({}{})", whole(left), whole(right))
        }
        for n in 1..40 {
            let leaves: Vec<String> = (0..n).map(|i| format!("{i},")).collect();
            assert_eq!(Some(whole(&leaves)), by_levels(leaves), "{n}");
        }
    }
}
