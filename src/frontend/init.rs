//! Keras's initializers.
//!
//! The distributions are Keras's; the numbers are ours, since no two of its back ends draw the same. They are a function of
//! (seed, variable path, element index), and fans are always those of the whole variable.

use std::ops::Range;

use crate::arrays::{Array, ArrayError, ArrayErrorKind, DType, push_f64};

use super::cursor::{At, Fields};
use super::error::ImportError;
use super::json::Json;
use super::random::Philox;

/// How the fans of a variance-scaling initializer come from a shape.
#[derive(Clone, Debug, PartialEq)]
pub enum Fans {
    /// From the last two extents times the product of those before.
    Shape,
    /// Given by axes that are inputs and axes that are outputs.
    Axes {
        /// Axes multiplied to the fan-in.
        inputs: Vec<usize>,
        /// Axes multiplied to the fan-out.
        outputs: Vec<usize>,
    },
}

/// Which fan divides the variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Inputs.
    FanIn,
    /// Outputs.
    FanOut,
    /// Their mean.
    FanAvg,
}

/// The shape of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Uniform.
    Uniform,
    /// Normal.
    Normal,
    /// Normal without what lies beyond two deviations.
    TruncatedNormal,
}

/// How a variable starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// One value everywhere.
    Constant(f64),
    /// These values, row-major.
    Values(Vec<f64>),
    /// A distribution with a mean and a deviation; for a uniform one, bounds.
    Random {
        /// Its shape.
        distribution: Distribution,
        /// Mean, or lower bound.
        a: f64,
        /// Deviation, or upper bound.
        b: f64,
    },
    /// A distribution whose variance is `scale` / fan.
    VarianceScaling {
        /// The numerator.
        scale: f64,
        /// The denominator.
        mode: Mode,
        /// The distribution.
        distribution: Distribution,
        /// How fans come from the shape.
        fans: Fans,
    },
    /// Orthonormal columns (or rows, where there are fewer of them) times a gain.
    Orthogonal {
        /// The gain.
        gain: f64,
    },
    /// The identity matrix times a gain.
    Identity {
        /// The gain.
        gain: f64,
    },
    /// Stretches of the last dimension, each a variable of its own to its initializer.
    Stretches(Vec<(usize, Initializer)>),
}

impl Initializer {
    /// All zeros.
    pub const ZEROS: Initializer = Initializer::Constant(0.0);
    /// All ones.
    pub const ONES: Initializer = Initializer::Constant(1.0);

    /// Keras's default for kernels.
    pub fn glorot_uniform() -> Initializer {
        scaling(1.0, Mode::FanAvg, Distribution::Uniform)
    }

    /// Reads a name, or an object with `class_name` and `config`.
    pub fn read(at: &At<'_>) -> Result<Initializer, ImportError> {
        if at.is_null() {
            // What Keras gives any variable for which nothing is said, biases included.
            return Ok(Initializer::glorot_uniform());
        }
        if at.json.as_str().is_some() {
            let fields = EMPTY.with_path(at);
            return Initializer::by_name(at, &fields);
        }
        let fields = at.fields()?;
        fields.irrelevant(&["module", "registered_name", "shared_object_id", "build_config"]);
        let class = fields.require("class_name")?;
        let config = fields.require("config")?.fields()?;
        // A seed picks other numbers of the same distribution; ours come from --seed. The dtype is the variable's.
        config.irrelevant(&["seed", "dtype", "name"]);
        let read = Initializer::by_name(&class, &config)?;
        match fields.finish().into_iter().chain(config.finish()).next() {
            Some(unknown) => Err(unknown),
            None => Ok(read),
        }
    }

    fn by_name(name: &At<'_>, config: &Fields<'_>) -> Result<Initializer, ImportError> {
        let fans = |scale, mode, distribution| -> Result<Initializer, ImportError> {
            let axes = |key| match config.opt(key) {
                Some(at) => at.one_or_many().iter().map(At::usize).collect::<Result<Vec<_>, _>>().map(Some),
                None => Ok(None),
            };
            let fans = match (axes("input_axes")?, axes("output_axes")?) {
                (Some(inputs), Some(outputs)) => Fans::Axes { inputs, outputs },
                (Some(_) | None, Some(_) | None) => Fans::Shape,
            };
            Ok(Initializer::VarianceScaling { scale, mode, distribution, fans })
        };
        // Files of the time when TensorFlow had two versions of each.
        let class = name.str()?;
        Ok(match class.strip_suffix("V2").unwrap_or(class) {
            "Zeros" | "zeros" | "zero" => Initializer::ZEROS,
            "Ones" | "ones" | "one" => Initializer::ONES,
            "Constant" | "constant" => match config.opt("value") {
                Some(value) => constant(&value)?,
                None => Initializer::ZEROS,
            },
            "RandomNormal" | "random_normal" | "normal" => Initializer::Random {
                distribution: Distribution::Normal,
                a: config.f64_or("mean", 0.0)?,
                b: config.f64_or("stddev", 0.05)?,
            },
            "TruncatedNormal" | "truncated_normal" => Initializer::Random {
                distribution: Distribution::TruncatedNormal,
                a: config.f64_or("mean", 0.0)?,
                b: config.f64_or("stddev", 0.05)?,
            },
            "RandomUniform" | "random_uniform" | "uniform" => Initializer::Random {
                distribution: Distribution::Uniform,
                a: config.f64_or("minval", -0.05)?,
                b: config.f64_or("maxval", 0.05)?,
            },
            "VarianceScaling" | "variance_scaling" => {
                let mode = [Mode::FanIn, Mode::FanOut, Mode::FanAvg]
                    [config.choice("mode", &["fan_in", "fan_out", "fan_avg"])?];
                let names = ["truncated_normal", "normal", "untruncated_normal", "uniform"];
                let distribution = match config.choice("distribution", &names)? {
                    0 | 1 => Distribution::TruncatedNormal,
                    2 => Distribution::Normal,
                    _ => Distribution::Uniform,
                };
                let scale = config.opt("scale");
                let factor = scale.as_ref().map_or(Ok(1.0), At::f64)?;
                if let Some(at) = scale.filter(|_| factor <= 0.0) {
                    return Err(at.expected("a number greater than 0"));
                }
                fans(factor, mode, distribution)?
            }
            "GlorotUniform" | "glorot_uniform" => fans(1.0, Mode::FanAvg, Distribution::Uniform)?,
            "GlorotNormal" | "glorot_normal" => fans(1.0, Mode::FanAvg, Distribution::TruncatedNormal)?,
            "HeUniform" | "he_uniform" => fans(2.0, Mode::FanIn, Distribution::Uniform)?,
            "HeNormal" | "he_normal" => fans(2.0, Mode::FanIn, Distribution::TruncatedNormal)?,
            "LecunUniform" | "lecun_uniform" => fans(1.0, Mode::FanIn, Distribution::Uniform)?,
            "LecunNormal" | "lecun_normal" => fans(1.0, Mode::FanIn, Distribution::TruncatedNormal)?,
            "Orthogonal" | "orthogonal" | "OrthogonalInitializer" => {
                Initializer::Orthogonal { gain: config.f64_or("gain", 1.0)? }
            }
            "Identity" | "identity" | "IdentityInitializer" => {
                Initializer::Identity { gain: config.f64_or("gain", 1.0)? }
            }
            _ => return Err(name.accepted(&NAMES)),
        })
    }

    /// The rows `rows` of a variable of this shape, in `dtype`.
    pub(crate) fn fill_rows(
        &self,
        shape: &[usize],
        rows: Range<usize>,
        dtype: DType,
        seed: u64,
        path: &str,
    ) -> Result<Array, ArrayError> {
        let too_large = || {
            let io = std::io::Error::new(
                std::io::ErrorKind::OutOfMemory,
                format!("{shape:?} elements do not fit in memory"),
            );
            ArrayErrorKind::Io(io).in_member(std::path::Path::new("initial weights"), path)
        };
        let row: usize = shape.iter().skip(1).product();
        let (start, end) = if shape.is_empty() { (0, 1) } else { (rows.start * row, rows.end * row) };
        let mut part = shape.to_vec();
        if let Some(first) = part.first_mut() {
            *first = rows.len();
        }
        let mut bytes = Vec::new();
        let len = crate::arrays::byte_len(dtype, &part).ok_or_else(too_large)?;
        bytes.try_reserve_exact(len).map_err(|_| too_large())?;
        let value = self.values(shape, Philox::new(seed, path));
        for i in start..end {
            push_f64(&mut bytes, dtype, value(i));
        }
        Array::from_bytes(dtype, part, &bytes).ok_or_else(too_large)
    }

    /// The value of each element by its row-major index.
    fn values(&self, shape: &[usize], random: Philox) -> Box<dyn Fn(usize) -> f64> {
        let draw = move |distribution, a: f64, b: f64| -> Box<dyn Fn(usize) -> f64> {
            match distribution {
                Distribution::Uniform => Box::new(move |i| a + (b - a) * random.uniform(i as u64)),
                Distribution::Normal => Box::new(move |i| a + b * random.normal(i as u64)),
                Distribution::TruncatedNormal => Box::new(move |i| a + b * random.truncated_normal(i as u64)),
            }
        };
        match self {
            Initializer::Constant(value) => {
                let value = *value;
                Box::new(move |_| value)
            }
            Initializer::Values(values) => {
                let values = values.clone();
                Box::new(move |i| values.get(i % values.len().max(1)).copied().unwrap_or(0.0))
            }
            Initializer::Random { distribution, a, b } => draw(*distribution, *a, *b),
            Initializer::VarianceScaling { scale, mode, distribution, fans } => {
                let (fan_in, fan_out) = fans.of(shape);
                let fan = match mode {
                    Mode::FanIn => fan_in,
                    Mode::FanOut => fan_out,
                    Mode::FanAvg => (fan_in + fan_out) / 2.0,
                };
                let variance = scale / fan.max(1.0);
                match distribution {
                    Distribution::Uniform => draw(*distribution, -(3.0 * variance).sqrt(), (3.0 * variance).sqrt()),
                    Distribution::Normal => draw(*distribution, 0.0, variance.sqrt()),
                    // The deviation of a normal distribution cut at two deviations.
                    Distribution::TruncatedNormal => {
                        draw(*distribution, 0.0, variance.sqrt() / 0.879_625_661_034_239_8)
                    }
                }
            }
            Initializer::Orthogonal { gain } => {
                let (matrix, gain) = (orthogonal(shape, random), *gain);
                Box::new(move |i| gain * matrix[i])
            }
            Initializer::Identity { gain } => {
                let (gain, columns) = (*gain, shape.last().copied().unwrap_or(1).max(1));
                Box::new(move |i| if i / columns == i % columns { gain } else { 0.0 })
            }
            Initializer::Stretches(stretches) => {
                let columns = shape.last().copied().unwrap_or(1).max(1);
                let part = |(k, (len, initializer)): (usize, &(usize, Initializer))| {
                    let own: Vec<usize> = shape.iter().rev().skip(1).rev().copied().chain([*len]).collect();
                    (*len, initializer.values(&own, random.part(k as u32)))
                };
                let parts: Vec<_> = stretches.iter().enumerate().map(part).collect();
                Box::new(move |i| {
                    let (row, mut column) = (i / columns, i % columns);
                    for (len, value) in &parts {
                        if column < *len {
                            return value(row * len + column);
                        }
                        column -= len;
                    }
                    0.0
                })
            }
        }
    }
}

impl Fans {
    fn of(&self, shape: &[usize]) -> (f64, f64) {
        let product = |dims: &mut dyn Iterator<Item = usize>| dims.map(|d| d as f64).product::<f64>();
        match (self, shape) {
            (Fans::Axes { inputs, outputs }, _) => {
                let of = |axes: &[usize]| product(&mut axes.iter().filter_map(|&a| shape.get(a).copied()));
                (of(inputs), of(outputs))
            }
            (Fans::Shape, []) => (1.0, 1.0),
            (Fans::Shape, [n]) => (*n as f64, *n as f64),
            (Fans::Shape, [field @ .., a, b]) => {
                let field = product(&mut field.iter().copied());
                (field * *a as f64, field * *b as f64)
            }
        }
    }
}

fn scaling(scale: f64, mode: Mode, distribution: Distribution) -> Initializer {
    Initializer::VarianceScaling { scale, mode, distribution, fans: Fans::Shape }
}

const NAMES: [&str; 15] = [
    "Zeros",
    "Ones",
    "Constant",
    "RandomNormal",
    "TruncatedNormal",
    "RandomUniform",
    "VarianceScaling",
    "GlorotUniform",
    "GlorotNormal",
    "HeUniform",
    "HeNormal",
    "LecunUniform",
    "LecunNormal",
    "Orthogonal",
    "Identity",
];

/// Stands for the configuration of an initializer given by name only.
struct Empty;
const EMPTY: Empty = Empty;

impl Empty {
    fn with_path<'j>(&self, at: &At<'j>) -> Fields<'j> {
        static NOTHING: std::sync::LazyLock<Json> =
            std::sync::LazyLock::new(|| Json::Object(indexmap::IndexMap::new()));
        let empty = At { json: &NOTHING, path: at.path.clone(), layer: at.layer.clone() };
        empty.fields().expect("an empty object is an object")
    }
}

/// A number, or an array, which Keras 3 writes as an object.
fn constant(value: &At<'_>) -> Result<Initializer, ImportError> {
    match value.json {
        Json::Object(_) => constant(&value.require("config")?.require("value")?),
        Json::Array(_) => Ok(Initializer::Values(flat(value)?)),
        _ => Ok(Initializer::Constant(value.any_f64()?)),
    }
}

fn flat(at: &At<'_>) -> Result<Vec<f64>, ImportError> {
    match at.array() {
        Ok(items) => Ok(items.iter().map(flat).collect::<Result<Vec<_>, _>>()?.concat()),
        Err(_) => Ok(vec![at.any_f64()?]),
    }
}

/// Orthonormal columns by Gram-Schmidt, twice for accuracy: the Q of a QR decomposition whose R has a positive diagonal.
fn orthogonal(shape: &[usize], random: Philox) -> Vec<f64> {
    let columns = shape.last().copied().unwrap_or(1);
    let rows: usize = shape.iter().rev().skip(1).product();
    let (tall, thin) = (rows.max(columns), rows.min(columns));
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(thin);
    for j in 0..thin {
        let mut v: Vec<f64> = (0..tall).map(|i| random.normal((i * thin + j) as u64)).collect();
        for _ in 0..2 {
            for b in &basis {
                let dot: f64 = v.iter().zip(b).map(|(x, y)| x * y).sum();
                v.iter_mut().zip(b).for_each(|(x, y)| *x -= dot * y);
            }
        }
        let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        v.iter_mut().for_each(|x| *x /= norm);
        basis.push(v);
    }
    let at = |r: usize, c: usize| if rows >= columns { basis[c][r] } else { basis[r][c] };
    (0..rows * columns).map(|i| at(i / columns, i % columns)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A document, or a name.
    fn document(text: &str) -> Json {
        if text.starts_with('{') { Json::parse(text).unwrap() } else { Json::String(text.to_string()) }
    }

    fn fill(json: &str, shape: &[usize]) -> Vec<f64> {
        drawn(&document(json), shape)
    }

    fn drawn(json: &Json, shape: &[usize]) -> Vec<f64> {
        let initializer = Initializer::read(&At::root(json)).unwrap();
        initializer.fill_rows(shape, 0..shape[0], DType::F64, 7, "dense/kernel").unwrap().to_f64()
    }

    fn moments(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (mean, (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt())
    }

    #[test]
    fn distributions_have_the_deviation_keras_states() {
        // Glorot: limit √(6/(fan_in+fan_out)), deviation limit/√3.
        let values = fill("glorot_uniform", &[300, 200]);
        let limit = (6.0f64 / 500.0).sqrt();
        assert!(values.iter().all(|v| v.abs() <= limit));
        let (mean, deviation) = moments(&values);
        assert!(mean.abs() < 0.001 && (deviation - limit / 3f64.sqrt()).abs() < 0.001, "{mean} {deviation}");
        // He normal of a convolution: fan-in = receptive field × channels; its truncation keeps the variance.
        let values = fill(r#"{"class_name": "HeNormal", "config": {"seed": null}}"#, &[3, 3, 50, 100]);
        let want = (2.0f64 / 450.0).sqrt();
        assert!(values.iter().all(|v| v.abs() <= 2.0 * want / 0.8796 + 1e-9));
        assert!((moments(&values).1 - want).abs() < 0.002);
        // Axes decide over shapes.
        let json = r#"{"class_name": "VarianceScaling", "config": {"scale": 1.0, "mode": "fan_in", "distribution": "untruncated_normal",
            "input_axes": [0], "output_axes": [1, 2]}}"#;
        assert!((moments(&fill(json, &[400, 10, 10])).1 - 0.05).abs() < 0.002);
    }

    /// `tests/goldens/initializers.json`, made by `tools/make_initializer_goldens.py`: tens of thousands of draws each.
    #[test]
    fn draws_are_distributed_as_those_of_keras() {
        let text = include_str!("../../tests/goldens/initializers.json");
        for case in Json::parse(text).unwrap().as_array().unwrap() {
            let get = |key: &str| At::root(case.get(key).unwrap());
            let shape: Vec<usize> = get("shape").array().unwrap().iter().map(|d| d.usize().unwrap()).collect();
            let values = drawn(get("config").json, &shape);
            let [mean, deviation, least, most] =
                ["mean", "deviation", "least", "most"].map(|key| get(key).f64().unwrap());
            let found = moments(&values);
            let extremes = values.iter().fold((f64::MAX, f64::MIN), |(a, b), &v| (a.min(v), b.max(v)));
            let what = format!("{:?}", get("config").json);
            assert!((found.0 - mean).abs() < 0.04 * deviation, "{what} {shape:?}: mean {} and {mean}", found.0);
            assert!((found.1 / deviation - 1.0).abs() < 0.02, "{what} {shape:?}: {} and {deviation}", found.1);
            // Only the tails of normal distributions that are not cut off differ much.
            let near = if what.contains("untruncated") || what.contains("RandomNormal") { 1.5 } else { 0.01 };
            let apart = (extremes.0 - least).abs().max((extremes.1 - most).abs());
            assert!(apart < near * deviation, "{what} {shape:?}: {extremes:?} and {least}, {most}");
        }
    }

    #[test]
    fn names_and_forms_of_other_versions() {
        let read = |json: &str| Initializer::read(&At::root(&document(json))).unwrap();
        assert_eq!(read("GlorotUniformV2"), Initializer::glorot_uniform());
        let array = r#"{"class_name": "Constant", "config": {"value": {"class_name": "__numpy__", "config": {"value": [[1.0, 2.0]], "dtype": "float32"}}}}"#;
        assert_eq!(read(array), Initializer::Values(vec![1.0, 2.0]));
        let old = r#"{"class_name": "VarianceScaling", "config": {"scale": 1.0, "mode": "fan_avg", "distribution": "uniform", "seed": null, "dtype": "float32"}}"#;
        assert_eq!(read(old), Initializer::glorot_uniform());
        let json = document(r#"{"class_name": "VarianceScaling", "config": {"scale": 0.0}}"#);
        let error = Initializer::read(&At::root(&json)).unwrap_err().to_string();
        assert_eq!(error, "$.config.scale: is 0; expected a number greater than 0");
    }

    #[test]
    fn orthogonal_kernels_are_orthonormal() {
        for (rows, columns) in [(12, 48), (40, 16)] {
            let q = fill(r#"{"class_name": "Orthogonal", "config": {"gain": 1.0, "seed": null}}"#, &[rows, columns]);
            let n = rows.min(columns);
            for a in 0..n {
                for b in 0..n {
                    let dot: f64 = match rows < columns {
                        true => (0..columns).map(|k| q[a * columns + k] * q[b * columns + k]).sum(),
                        false => (0..rows).map(|k| q[k * columns + a] * q[k * columns + b]).sum(),
                    };
                    assert!((dot - f64::from(u8::from(a == b))).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn a_part_is_a_part_of_the_whole() {
        for name in ["he_uniform", "orthogonal", "truncated_normal"] {
            let json = document(name);
            let initializer = Initializer::read(&At::root(&json)).unwrap();
            let whole = initializer.fill_rows(&[7, 5], 0..7, DType::F32, 1, "w").unwrap();
            let part = initializer.fill_rows(&[7, 5], 2..5, DType::F32, 1, "w").unwrap();
            assert_eq!(whole.rows(2, 5).unwrap().bytes(), part.bytes());
            let other = initializer.fill_rows(&[7, 5], 0..7, DType::F32, 1, "v").unwrap();
            assert_ne!(whole.bytes(), other.bytes());
        }
    }

    #[test]
    fn stretches_and_unknown_names() {
        let random = || Initializer::Random { distribution: Distribution::Uniform, a: 2.0, b: 3.0 };
        let bias = Initializer::Stretches(vec![(2, random()), (2, Initializer::ONES), (4, random())]);
        let got = bias.fill_rows(&[8], 0..8, DType::F64, 0, "b").unwrap().to_f64();
        assert_eq!(got[2..4], [1.0, 1.0]);
        let (first, last) = (&got[..2], &got[4..]);
        assert!(first.iter().chain(last).all(|x| (2.0..3.0).contains(x)));
        assert!(first.iter().all(|x| !last.contains(x)));
        let json = document("HeNormall");
        let error = Initializer::read(&At::root(&json)).unwrap_err();
        assert_eq!(error.help().as_deref(), Some("did you mean `HeNormal`?"));
    }
}
