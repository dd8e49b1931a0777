//! Weights of classes as a user writes them.

use std::collections::BTreeMap;

/// Weights of classes that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassWeightError {
    /// Something that is no pair of class and weight.
    #[error("`{found}` is no class with its weight, such as `0: 1.5`")]
    Pair {
        /// What is there.
        found: String,
    },
    /// A class that is no integer.
    #[error("the class `{found}` is not an integer")]
    Class {
        /// What is there.
        found: String,
    },
    /// A weight that is no finite number.
    #[error("the weight `{found}` of class {class} is not a finite number")]
    Weight {
        /// The class.
        class: i64,
        /// What is there.
        found: String,
    },
    /// A class with two weights.
    #[error("class {class} stands there twice")]
    Twice {
        /// The class.
        class: i64,
    },
}

/// Reads weights of classes as Python or JSON writes a dictionary, or without its braces: `{0: 1.0, 1: 5.0}`,
/// `{"0": 1, "1": 5}`, `0:1,1:5`, `0=1,1=5`. Classes that are not named weigh 1.
///
/// # Errors
/// The first thing that is no class with its weight.
pub fn class_weights(text: &str) -> Result<BTreeMap<i64, f64>, ClassWeightError> {
    let text = text.trim();
    let inner = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(text);
    let mut weights = BTreeMap::new();
    for pair in inner.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let parts = pair.split_once(':').or_else(|| pair.split_once('='));
        let (class, weight) = parts.ok_or_else(|| ClassWeightError::Pair { found: pair.to_string() })?;
        let (class, weight) = (class.trim().trim_matches(['"', '\'']), weight.trim());
        let class: i64 = class.parse().map_err(|_| ClassWeightError::Class { found: class.to_string() })?;
        let number = weight.parse().ok().filter(|x: &f64| x.is_finite());
        let number = number.ok_or_else(|| ClassWeightError::Weight { class, found: weight.to_string() })?;
        if weights.insert(class, number).is_some() {
            return Err(ClassWeightError::Twice { class });
        }
    }
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_says_the_same() {
        let want = BTreeMap::from([(0, 1.0), (3, 0.25)]);
        for text in
            ["{0: 1.0, 3: 0.25}", r#"{"0": 1, "3": 0.25}"#, "0:1,3:.25", " 0 = 1, 3=2.5e-1, ", "{'3': 0.25, '0': 1}"]
        {
            assert_eq!(class_weights(text).unwrap(), want, "{text}");
        }
        assert_eq!(class_weights("{}").unwrap(), BTreeMap::new());
        let message = |text: &str| class_weights(text).unwrap_err().to_string();
        assert_eq!(message("1"), "`1` is no class with its weight, such as `0: 1.5`");
        assert_eq!(message("{cat: 2}"), "the class `cat` is not an integer");
        assert_eq!(message("0:1,1:nan"), "the weight `nan` of class 1 is not a finite number");
        assert_eq!(message("0:1,0:2"), "class 0 stands there twice");
    }
}
