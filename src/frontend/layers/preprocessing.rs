//! Preprocessing of numbers that stand for categories: binning, lookup in a vocabulary, one-hot and counting encodings.

use intwain_ir::ops::{Iota, Take};
use intwain_ir::scalar::{Binary, Compare, Reduce};
use intwain_ir::{DType, Shape, Trainable, Value};

use super::build::Builder;
use super::cx::{Cx, Fail, Out, misfit};
use super::hashing::{Hash, buckets};
use super::inputs::Inputs;
use super::tables;
use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::ImportErrorKind;
use crate::frontend::file::Generation;
use crate::frontend::init::Initializer;
use crate::frontend::json::Json;

/// What becomes of categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// They stay numbers.
    Int,
    /// A 1 at each category's place.
    OneHot,
    /// A 1 at the place of every category of a sample.
    MultiHot,
    /// How often each category occurs in a sample.
    Count,
}

const ENCODINGS: [Encoding; 4] = [Encoding::Int, Encoding::OneHot, Encoding::MultiHot, Encoding::Count];

impl Encoding {
    pub(super) fn read(fields: &Fields<'_>, accepted: &[&str]) -> Out<Encoding> {
        Ok(ENCODINGS[fields.choice("output_mode", accepted)?])
    }
}

/// Categories as Keras encodes them: `ids` below 0 and from `depth` on count nowhere. The result has the type `dtype`, that of
/// `weights` where there are any.
pub(super) fn encode(
    cx: &mut Cx,
    ids: Value,
    depth: usize,
    encoding: Encoding,
    dtype: DType,
    weights: Option<Value>,
) -> Out<Value> {
    let mut dims = cx.dims(ids);
    let mut ids = ids;
    match encoding {
        Encoding::Int => return Ok(cx.g.cast(dtype, ids)?),
        Encoding::OneHot if dims.len() > 1 && dims.last() == Some(&1) => {
            dims.pop();
            ids = cx.g.reshape(ids, &Shape::from(dims.clone()))?;
        }
        Encoding::OneHot | Encoding::MultiHot | Encoding::Count => {}
    }
    let places: Vec<usize> = (0..dims.len()).collect();
    dims.push(depth);
    let shape = Shape::from(dims);
    let id_type = cx.g.ty(ids).dtype;
    let wide = cx.g.broadcast(ids, &shape, &places)?;
    let at = cx.g.push(Iota { dtype: id_type, shape: shape.clone(), dim: places.len(), start: 0 }, &[])?;
    let here = cx.g.compare(Compare::Eq, wide, at)?;
    // A sample is what lies along dimension 1, or everything where there is no other.
    let sample = usize::from(places.len() > 1);
    if encoding == Encoding::MultiHot && !places.is_empty() {
        // A sum of booleans is `any`.
        let any = cx.g.reduce(Reduce::Sum, here, &[sample])?;
        return Ok(cx.g.cast(dtype, any)?);
    }
    let mut ones = cx.g.cast(dtype, here)?;
    if encoding == Encoding::OneHot {
        return Ok(ones);
    }
    if let Some(weights) = weights {
        let weights = cx.g.cast(dtype, weights)?;
        let wide = cx.g.broadcast(weights, &shape, &places)?;
        ones = cx.g.mul(ones, wide)?;
    }
    Ok(cx.g.reduce(Reduce::Sum, ones, &[sample])?)
}

/// Numbers as 64-bit integers, floating ones cut off.
pub(super) fn whole(cx: &mut Cx, x: Value) -> Out<Value> {
    Ok(cx.g.cast(DType::I64, x)?)
}

/// The size of the encoding is given; weights are a second argument.
pub(super) fn category_encoding(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let depth = fields.require("num_tokens")?.positive()?;
    let names = ["multi_hot", "one_hot", "count"];
    let encoding = [Encoding::MultiHot, Encoding::OneHot, Encoding::Count][fields.choice("output_mode", &names)?];
    fields.neutral("sparse", &[Json::Bool(false)])?;
    let x = inputs.one()?.value;
    let weights = inputs.tensor(1, "count_weights")?.map(|t| t.value);
    if weights.is_some() && encoding != Encoding::Count {
        return Err(misfit("takes weights with the output mode `count` only"));
    }
    let cx = &mut b.cx;
    if weights.is_some_and(|w| cx.dims(w) != cx.dims(x)) {
        return Err(misfit("takes weights of the shape of its input"));
    }
    let ids = whole(cx, x)?;
    let dtype = cx.dtype;
    Ok(vec![encode(cx, ids, depth, encoding, dtype, weights)?.into()])
}

/// The number of boundaries that are not above a value.
pub(super) fn discretization(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?.value;
    fields.irrelevant(&["num_bins", "epsilon"]);
    let encoding = Encoding::read(fields, &["int", "one_hot", "multi_hot", "count"])?;
    fields.neutral("sparse", &[Json::Bool(false)])?;
    let Some(boundaries) = fields.opt_any(&["bin_boundaries", "bins"]) else {
        return Err(not_in_file(
            "boundaries that `adapt` found",
            "pass `bin_boundaries=layer.bin_boundaries` to the layer",
        ));
    };
    let boundaries = boundaries.array()?.iter().map(At::any_f64).collect::<Result<Vec<_>, _>>()?;
    let cx = &mut b.cx;
    let x = if cx.g.ty(x).dtype.is_float() { x } else { cx.g.cast(DType::F32, x)? };
    let dims = cx.dims(x);
    let bins = if boundaries.is_empty() {
        cx.g.full(DType::I32, 0.0, &Shape::from(dims))?
    } else {
        let places: Vec<usize> = (0..dims.len()).collect();
        let shape = Shape::from(dims.iter().copied().chain([boundaries.len()]).collect::<Vec<_>>());
        // Keras holds boundaries as 32-bit numbers.
        let table = tables::floats(cx, DType::F32, &[boundaries.len()], &boundaries)?;
        let dtype = cx.g.ty(x).dtype;
        let table = cx.g.cast(dtype, table)?;
        let (wide, table) = (cx.g.broadcast(x, &shape, &places)?, cx.g.broadcast_to(table, &shape)?);
        let below = cx.g.compare(Compare::Lt, wide, table)?;
        // NaN is below no boundary: it is in the last bin.
        let (zero, one) = (cx.g.full(DType::I32, 0.0, &shape)?, cx.g.full(DType::I32, 1.0, &shape)?);
        let reached = cx.g.select(below, zero, one)?;
        cx.g.reduce(Reduce::Sum, reached, &[dims.len()])?
    };
    let dtype = match encoding {
        Encoding::Int if cx.generation == Generation::Three => DType::I32,
        Encoding::Int => DType::I64,
        Encoding::OneHot | Encoding::MultiHot | Encoding::Count => cx.dtype,
    };
    Ok(vec![encode(cx, bins, boundaries.len() + 1, encoding, dtype, None)?.into()])
}

fn not_in_file(what: &str, remedy: &'static str) -> Fail {
    Fail::Here(ImportErrorKind::Unsupported {
        what: format!("{what} are not in the model's configuration"),
        remedy: Some(remedy),
    })
}

/// What an `IntegerLookup` is told.
struct Vocabulary {
    mask: Option<i64>,
    oov: i64,
    /// How many indices stand for numbers that are not in the vocabulary.
    oov_indices: usize,
    /// Without the special tokens.
    tokens: Vec<i64>,
    /// Whether it was written with the special tokens in front.
    special: bool,
}

impl Vocabulary {
    fn read(fields: &Fields<'_>, int: bool) -> Out<Vocabulary> {
        let mask = fields.opt_any(&["mask_token", "mask_value"]).map(|at| at.int()).transpose()?;
        let oov = fields.opt_any(&["oov_token", "oov_value"]).map_or(Ok(-1), |at| at.int())?;
        let oov_indices = fields.usize_or("num_oov_indices", 1)?;
        fields.irrelevant(&["has_input_vocabulary", "vocabulary_size", "invert"]);
        let Some(at) = fields.opt("vocabulary") else {
            return Err(not_in_file(
                "the numbers that `adapt` found",
                "pass `vocabulary=layer.get_vocabulary()` to the layer and save it again",
            ));
        };
        let mut tokens = at.array()?.iter().map(At::int).collect::<Result<Vec<_>, _>>()?;
        let front = if mask.is_some() && int { mask } else { None };
        let special: Vec<i64> = front.into_iter().chain(std::iter::repeat_n(oov, oov_indices)).collect();
        let found = !special.is_empty() && tokens.starts_with(&special);
        if found {
            tokens.drain(..special.len());
        }
        let mut sorted = tokens.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|w| w[0] == w[1]) {
            return Err(misfit(format!("the vocabulary has {} twice", twice[0])));
        }
        Ok(Vocabulary { mask, oov, oov_indices, tokens, special: found })
    }
}

/// Integers to their place in a vocabulary, or back.
pub(super) fn integer_lookup(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let names = ["int", "one_hot", "multi_hot", "count", "tf_idf", "binary", "tf-idf"];
    let mode = fields.choice("output_mode", &names)?;
    let (encoding, idf) = match mode {
        0 => (Encoding::Int, false),
        1 => (Encoding::OneHot, false),
        2 | 5 => (Encoding::MultiHot, false),
        3 => (Encoding::Count, false),
        _ => (Encoding::Count, true),
    };
    fields.neutral("sparse", &[Json::Bool(false)])?;
    fields.neutral("vocabulary_dtype", &[Json::String("int64".to_string())])?;
    let vocabulary = Vocabulary::read(fields, encoding == Encoding::Int)?;
    let hash = match fields.choice("oov_method", &["floormod", "farmhash"])? {
        0 => None,
        _ => Some(Hash::read(fields)?),
    };
    fields.irrelevant(&["salt"]);
    let most = fields.opt_any(&["max_tokens", "max_values"]).map(|at| at.positive()).transpose()?;
    let padded = fields.bool_or("pad_to_max_tokens", false)?;
    let weights = fields.opt("idf_weights");
    let x = inputs.one()?.value;
    let cx = &mut b.cx;
    let x = whole(cx, x)?;
    // A mask has an index of its own where indices are the result, and none elsewhere.
    let first = usize::from(vocabulary.mask.is_some() && encoding == Encoding::Int);
    let start = first + vocabulary.oov_indices;
    if fields.bool_or("invert", false)? {
        return Ok(vec![inverse(cx, x, &vocabulary, start)?.into()]);
    }
    let mut found = lookup(cx, x, &vocabulary.tokens, start as i64)?;
    let ty = cx.g.ty(x).clone();
    if let Some(mask) = vocabulary.mask {
        let dropped = if encoding == Encoding::Int { 0 } else { i64::MAX };
        let (mask, dropped) = (same(cx, mask, &ty.shape)?, same(cx, dropped, &ty.shape)?);
        let here = cx.g.compare(Compare::Eq, x, mask)?;
        found = cx.g.select(here, dropped, found)?;
    }
    let absent = same(cx, -1, &ty.shape)?;
    let lost = cx.g.compare(Compare::Eq, found, absent)?;
    let n = vocabulary.oov_indices as i64;
    let other = match (n, hash) {
        // Keras stops at a number it does not know; the index −1 is none of an embedding or encoding.
        (0, _) => absent,
        (1, _) => same(cx, first as i64, &ty.shape)?,
        (_, hash) => {
            let count = same(cx, n, &ty.shape)?;
            let bucket = match hash {
                None => cx.g.binary(Binary::Mod, x, count)?,
                Some(hash) => buckets(cx, x, n, hash)?,
            };
            let first = same(cx, first as i64, &ty.shape)?;
            cx.g.add(bucket, first)?
        }
    };
    let found = cx.g.select(lost, other, found)?;
    let size = start + vocabulary.tokens.len();
    let depth = if padded { most.ok_or_else(|| misfit("is padded to `max_tokens`, which is absent"))? } else { size };
    if !idf {
        let dtype = if encoding == Encoding::Int || cx.generation == Generation::Three { DType::I64 } else { cx.dtype };
        return Ok(vec![encode(cx, found, depth, encoding, dtype, None)?.into()]);
    }
    let weights = weights.ok_or_else(|| {
        not_in_file(
            "the weights that `adapt` found",
            "pass `vocabulary` and `idf_weights` to the layer and save it again",
        )
    })?;
    let weights = idf_weights(&weights, &vocabulary, start, depth)?;
    let dtype = DType::F32;
    let counts = encode(cx, found, depth, Encoding::Count, dtype, None)?;
    let weights = cx.var_of(dtype, "idf_weights", &[depth], Initializer::Values(weights), Trainable::Frozen)?;
    Ok(vec![cx.g.binary_broadcast(Binary::Mul, counts, weights)?.into()])
}

/// Unknown numbers have the mean weight where theirs are not given; what the encoding is padded with has none.
fn idf_weights(at: &At<'_>, vocabulary: &Vocabulary, start: usize, depth: usize) -> Out<Vec<f64>> {
    let given = at.array()?.iter().map(At::f64).collect::<Result<Vec<_>, _>>()?;
    let expected = vocabulary.tokens.len() + if vocabulary.special { start } else { 0 };
    if given.len() != expected {
        return Err(misfit(format!("{} weights for a vocabulary of {expected}", given.len())));
    }
    let mean = given.iter().sum::<f64>() / given.len().max(1) as f64;
    let front = if vocabulary.special { 0 } else { start };
    let mut all: Vec<f64> = std::iter::repeat_n(mean, front).chain(given).collect();
    if all.len() > depth {
        return Err(misfit(format!("a vocabulary of {} for `max_tokens` {depth}", all.len())));
    }
    all.resize(depth, 0.0);
    Ok(all)
}

/// One integer everywhere.
pub(super) fn same(cx: &mut Cx, x: i64, shape: &Shape) -> Out<Value> {
    let elements = vec![intwain_ir::Scalar::from_i64(DType::I64, x)];
    Ok(cx.g.push(intwain_ir::ops::Constant { shape: shape.clone(), elements }, &[])?)
}

/// `start` plus the place of each number among `tokens`, −1 where it is absent: a bisection of the sorted tokens.
fn lookup(cx: &mut Cx, x: Value, tokens: &[i64], start: i64) -> Out<Value> {
    let shape = cx.g.shape(x).clone();
    if tokens.is_empty() {
        return same(cx, -1, &shape);
    }
    let mut sorted: Vec<(i64, i64)> = tokens.iter().copied().zip(start..).collect();
    sorted.sort_unstable();
    let (keys, places): (Vec<i64>, Vec<i64>) = sorted.into_iter().unzip();
    let keys = tables::integers(cx, DType::I64, &keys)?;
    let places = tables::integers(cx, DType::I64, &places)?;
    let last = same(cx, tokens.len() as i64 - 1, &shape)?;
    let mut low = same(cx, 0, &shape)?;
    // The last key not above x is at `low` or up to 2·step − 1 behind it.
    let mut step = tokens.len().next_power_of_two() as i64 / 2;
    while step > 0 {
        let ahead = same(cx, step, &shape)?;
        let probe = cx.g.add(low, ahead)?;
        let inside = cx.g.binary(Binary::Min, probe, last)?;
        let key = cx.g.push(Take { base: 0 }, &[keys, inside])?;
        let reached = cx.g.compare(Compare::Le, key, x)?;
        low = cx.g.select(reached, inside, low)?;
        step /= 2;
    }
    let key = cx.g.push(Take { base: 0 }, &[keys, low])?;
    let place = cx.g.push(Take { base: 0 }, &[places, low])?;
    let hit = cx.g.compare(Compare::Eq, key, x)?;
    let absent = same(cx, -1, &shape)?;
    Ok(cx.g.select(hit, place, absent)?)
}

/// Indices to the numbers they stand for.
fn inverse(cx: &mut Cx, x: Value, vocabulary: &Vocabulary, start: usize) -> Out<Value> {
    let shape = cx.g.shape(x).clone();
    let unknown = same(cx, vocabulary.oov, &shape)?;
    let mut y = unknown;
    if !vocabulary.tokens.is_empty() {
        let tokens = tables::integers(cx, DType::I64, &vocabulary.tokens)?;
        let (start, last) = (same(cx, start as i64, &shape)?, same(cx, vocabulary.tokens.len() as i64 - 1, &shape)?);
        let zero = same(cx, 0, &shape)?;
        let at = cx.g.sub(x, start)?;
        let low = cx.g.binary(Binary::Max, at, zero)?;
        let inside = cx.g.binary(Binary::Min, low, last)?;
        let token = cx.g.push(Take { base: 0 }, &[tokens, inside])?;
        let known = cx.g.compare(Compare::Eq, inside, at)?;
        y = cx.g.select(known, token, unknown)?;
    }
    if let Some(mask) = vocabulary.mask {
        let (zero, mask) = (same(cx, 0, &shape)?, same(cx, mask, &shape)?);
        let here = cx.g.compare(Compare::Eq, x, zero)?;
        y = cx.g.select(here, mask, y)?;
    }
    Ok(y)
}
