//! The shapes of all layers' results, with the extents that a file leaves open.
//!
//! A graph has no open extents. They are found by importing the model for two sizes of everything that is open: what
//! differs between the two depends on it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::build::{ImportOptions, Imported, import};
use crate::frontend::error::ImportErrors;
use crate::frontend::model::KerasModel;
use crate::frontend::weights::VarTree;

/// An extent, `None` where it depends on the batch or on another extent that is open.
pub type Extent = Option<usize>;

/// The shapes of each layer's results, by the layer's path.
pub type ResultShapes = BTreeMap<String, Vec<Vec<Extent>>>;

/// Rows and other extents of the two imports. Multiples of 32, as networks that halve their inputs want them, and large
/// enough for the windows of those that do not pad.
const SIZES: [(usize, usize); 2] = [(2, 224), (3, 256)];

/// The variables of a model, which do not depend on extents that are open.
pub fn variables(model: &KerasModel, file: &Path, options: &ImportOptions) -> Result<VarTree, ImportErrors> {
    Ok(sized(model, file, options, SIZES[0])?.vars)
}

/// The shapes of all results, and the variables. Extents given in `options` are fixed, its batch is not asked for.
pub fn result_shapes(
    model: &KerasModel,
    file: &Path,
    options: &ImportOptions,
) -> Result<(ResultShapes, VarTree), ImportErrors> {
    let (first, second) = (sized(model, file, options, SIZES[0])?, sized(model, file, options, SIZES[1])?);
    Ok(merge(first, &second))
}

/// An import with a size for everything that is open, or where that does not fit with an extent that an input has.
fn sized(
    model: &KerasModel,
    file: &Path,
    options: &ImportOptions,
    (batch, open): (usize, usize),
) -> Result<Imported, ImportErrors> {
    let specs: Vec<(String, Vec<Option<usize>>)> = model
        .input_specs()
        .into_iter()
        .filter_map(|(name, spec)| Some((name.to_string(), spec.shape.as_ref()?.get(1..)?.to_vec())))
        .collect();
    let with = |open: usize| {
        let mut shapes = options.shapes.clone();
        for (name, shape) in specs.iter().filter(|(_, shape)| shape.iter().any(Option::is_none)) {
            shapes.entry(name.clone()).or_insert_with(|| shape.iter().map(|e| e.unwrap_or(open)).collect());
        }
        shapes
    };
    let try_with = |shapes| import(model, file, &ImportOptions { batch, shapes, ..options.clone() });
    let shapes = with(open);
    let guessed = shapes.len() > options.shapes.len();
    match try_with(shapes) {
        Err(_) if guessed => {
            let given: BTreeSet<usize> = specs.iter().flat_map(|(_, shape)| shape.iter().flatten().copied()).collect();
            let fitting = given.into_iter().find_map(|extent| try_with(with(extent)).ok());
            // The file's own problems, without those that our guesses bring.
            fitting.map_or_else(|| try_with(options.shapes.clone()), Ok)
        }
        result => result,
    }
}

fn merge(first: Imported, second: &Imported) -> (ResultShapes, VarTree) {
    let extents = |(a, b): (&Vec<usize>, &Vec<usize>)| {
        a.iter().zip(b).map(|(a, b)| (a == b).then_some(*a)).collect::<Vec<Extent>>()
    };
    let shapes = first.results.iter().filter_map(|(path, shapes)| {
        let others = second.results.get(path)?;
        Some((path.clone(), shapes.iter().zip(others).map(extents).collect()))
    });
    (shapes.collect(), first.vars)
}
