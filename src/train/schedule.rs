//! Learning-rate schedules.
//!
//! A schedule is a function of the number of steps taken so far, computed in the graph from the optimizer's counter, in
//! f32 as TensorFlow does it also where the model is f64. With gradient accumulation the counter counts every step, not
//! only those that update.

use indexmap::IndexMap;
use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Binary, Compare, Unary};
use intwain_ir::{DType, Graph, Shape, Value};

use crate::frontend::{At, Fields, ImportError, Json};
use crate::train::optimizer::{Formula, number, of};

/// A learning rate.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// A number, which the optimizer keeps as a variable.
    Constant(f64),
    /// A function of the step, of which nothing is kept.
    Schedule(Schedule),
}

/// A learning rate that depends on the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    name: String,
    kind: Kind,
}

/// What a schedule computes; the fields are Keras's.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Exponential { initial: f64, steps: f64, rate: f64, form: Form },
    InverseTime { initial: f64, steps: f64, rate: f64, form: Form },
    Piecewise { boundaries: Vec<f64>, values: Vec<f64> },
    Polynomial { initial: f64, steps: f64, end: f64, power: f64, after: After },
    Cosine { initial: f64, steps: f64, alpha: f64, warmup: Option<f64>, warmup_steps: f64 },
    CosineRestarts { initial: f64, steps: f64, t_mul: f64, m_mul: f64, alpha: f64 },
}

/// How a decay proceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Smooth,
    Staircase,
}

/// What comes after the steps of a polynomial decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    End,
    Cycle,
}

type Reader = fn(&Fields<'_>) -> Result<Kind, ImportError>;

/// The schedules: class, default name, reader.
const CLASSES: &[(&str, &str, Reader)] = &[
    ("CosineDecay", "CosineDecay", cosine),
    ("CosineDecayRestarts", "SGDRDecay", cosine_restarts),
    ("ExponentialDecay", "ExponentialDecay", exponential),
    ("InverseTimeDecay", "InverseTimeDecay", inverse_time),
    ("PiecewiseConstantDecay", "PiecewiseConstant", piecewise),
    ("PolynomialDecay", "PolynomialDecay", polynomial),
];

impl Rate {
    /// A number, or a schedule as Keras serialises it.
    pub fn read(at: &At<'_>) -> Result<Rate, ImportError> {
        match at.json {
            Json::Object(_) => Schedule::read(at).map(Rate::Schedule),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) | Json::Array(_) => {
                at.f64().map(Rate::Constant).map_err(|_| at.expected("a finite number or a schedule"))
            }
        }
    }

    /// What Keras writes into a configuration.
    pub fn config(&self) -> Json {
        match self {
            Rate::Constant(rate) => Json::Float(*rate),
            Rate::Schedule(schedule) => schedule.config(),
        }
    }
}

impl Schedule {
    /// A schedule as Keras serialises it.
    pub fn read(at: &At<'_>) -> Result<Schedule, ImportError> {
        let class = at.require("class_name")?;
        let names: Vec<&str> = CLASSES.iter().map(|row| row.0).collect();
        let row =
            CLASSES.iter().find(|row| class.json.as_str() == Some(row.0)).ok_or_else(|| class.accepted(&names))?;
        let fields = at.require("config")?.fields()?;
        let name = fields.opt("name").map(|at| at.str()).transpose()?.unwrap_or(row.1).to_string();
        let kind = row.2(&fields)?;
        match fields.finish().into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(Schedule { name, kind }),
        }
    }

    /// The rate of Keras 2's older optimizers, which divide theirs by 1 + `decay` · step.
    pub(crate) fn decaying(initial: f64, decay: f64) -> Schedule {
        let kind = Kind::InverseTime { initial, steps: 1.0, rate: decay, form: Form::Smooth };
        Schedule { name: "InverseTimeDecay".to_string(), kind }
    }

    /// The rate after `step` steps (an integer scalar): an f32 scalar.
    pub fn at(&self, g: &mut Graph, step: Value) -> Result<Value, TypeError> {
        let float = DType::F32;
        let mut constant = |x: f64| g.full(float, x, &Shape::default()).map(of);
        let t = of(step).cast(float);
        let rate = match &self.kind {
            Kind::Exponential { initial, steps, rate, form } => *initial * number(*rate).pow(form.of(t / *steps)),
            Kind::InverseTime { initial, steps, rate, form } => *initial / (1.0 + *rate * form.of(t / *steps)),
            Kind::Piecewise { boundaries, values } => {
                let terms = pieces(step, boundaries, values);
                terms.into_iter().fold(constant(0.0)?, |sum, term| sum + term)
            }
            Kind::Polynomial { initial, steps, end, power, after } => {
                let (t, length) = match after {
                    After::End => (t.min(*steps), constant(*steps)?),
                    After::Cycle => {
                        let cycles = (t.clone() / *steps).map(Unary::Ceil);
                        let first = t.clone().is(Compare::Eq, 0.0);
                        (t, *steps * first.choose(1.0, cycles))
                    }
                };
                (constant(*initial)? - *end) * (1.0 - t / length).pow(*power) + *end
            }
            Kind::Cosine { initial, steps, alpha, warmup, warmup_steps } => {
                let from = |rate: f64, t: Formula| rate * ((1.0 - alpha) * half_wave(t / *steps) + *alpha);
                match warmup {
                    None => from(*initial, t.min(*steps)),
                    Some(target) => {
                        let t = t.min(constant(*steps)? + *warmup_steps);
                        let rise = constant(*target)? - *initial;
                        let warm = rise * (t.clone() / *warmup_steps) + *initial;
                        let decayed = from(*target, t.clone() - *warmup_steps);
                        t.is(Compare::Lt, *warmup_steps).choose(warm, decayed)
                    }
                }
            }
            Kind::CosineRestarts { initial, steps, t_mul, m_mul, alpha } => {
                let factor = &f64::from(*t_mul as f32);
                let (t_mul, alpha) = (constant(*t_mul)?, constant(*alpha)?);
                let (restarts, done) = period(t / *steps, t_mul, *factor == 1.0);
                let wave = 0.5 * number(*m_mul).pow(restarts) * (1.0 + (std::f64::consts::PI * done).map(Unary::Cos));
                *initial * ((1.0 - alpha.clone()) * wave + alpha)
            }
        };
        rate.build(g)
    }

    /// What Keras writes for it.
    pub fn config(&self) -> Json {
        let float = |x: &f64| Json::Float(*x);
        let list = |xs: &[f64]| Json::Array(xs.iter().map(whole).collect());
        let (class, mut entries): (&str, Vec<(&str, Json)>) = match &self.kind {
            Kind::Exponential { initial, steps, rate, form } => {
                ("ExponentialDecay", decay(*initial, *steps, *rate, *form))
            }
            Kind::InverseTime { initial, steps, rate, form } => {
                ("InverseTimeDecay", decay(*initial, *steps, *rate, *form))
            }
            Kind::Piecewise { boundaries, values } => {
                let values = Json::Array(values.iter().map(float).collect());
                ("PiecewiseConstantDecay", vec![("boundaries", list(boundaries)), ("values", values)])
            }
            Kind::Polynomial { initial, steps, end, power, after } => {
                let entries = vec![
                    ("initial_learning_rate", float(initial)),
                    ("decay_steps", whole(steps)),
                    ("end_learning_rate", float(end)),
                    ("power", float(power)),
                    ("cycle", Json::Bool(*after == After::Cycle)),
                ];
                ("PolynomialDecay", entries)
            }
            Kind::Cosine { initial, steps, alpha, warmup, warmup_steps } => {
                let entries = vec![
                    ("initial_learning_rate", float(initial)),
                    ("decay_steps", whole(steps)),
                    ("alpha", float(alpha)),
                    ("warmup_target", warmup.as_ref().map_or(Json::Null, float)),
                    ("warmup_steps", whole(warmup_steps)),
                ];
                ("CosineDecay", entries)
            }
            Kind::CosineRestarts { initial, steps, t_mul, m_mul, alpha } => {
                let entries = vec![
                    ("initial_learning_rate", float(initial)),
                    ("first_decay_steps", whole(steps)),
                    ("t_mul", float(t_mul)),
                    ("m_mul", float(m_mul)),
                    ("alpha", float(alpha)),
                ];
                ("CosineDecayRestarts", entries)
            }
        };
        entries.push(("name", Json::String(self.name.clone())));
        serialised("keras.optimizers.schedules", class, entries)
    }
}

/// A number that Keras keeps as an integer where it is one.
fn whole(x: &f64) -> Json {
    if x.fract() == 0.0 && x.abs() < 9e15 { Json::Int(*x as i64) } else { Json::Float(*x) }
}

fn decay(initial: f64, steps: f64, rate: f64, form: Form) -> Vec<(&'static str, Json)> {
    vec![
        ("initial_learning_rate", Json::Float(initial)),
        ("decay_steps", whole(&steps)),
        ("decay_rate", Json::Float(rate)),
        ("staircase", Json::Bool(form == Form::Staircase)),
    ]
}

/// An object as Keras 3 serialises it.
pub(crate) fn serialised(module: &str, class: &str, config: Vec<(&str, Json)>) -> Json {
    let object = |entries: Vec<(&str, Json)>| {
        Json::Object(entries.into_iter().map(|(key, json)| (key.to_string(), json)).collect::<IndexMap<_, _>>())
    };
    object(vec![
        ("module", Json::String(module.to_string())),
        ("class_name", Json::String(class.to_string())),
        ("config", object(config)),
        ("registered_name", Json::Null),
    ])
}

impl Form {
    fn of(self, x: Formula) -> Formula {
        match self {
            Form::Smooth => x,
            Form::Staircase => x.map(Unary::Floor),
        }
    }

    fn read(fields: &Fields<'_>) -> Result<Form, ImportError> {
        Ok(if fields.bool_or("staircase", false)? { Form::Staircase } else { Form::Smooth })
    }
}

/// From 1 to 0 along half a wave.
fn half_wave(x: Formula) -> Formula {
    0.5 * (1.0 + (std::f64::consts::PI * x).map(Unary::Cos))
}

/// Each value where the step lies in its range, which includes the upper end, else 0.
fn pieces(step: Value, boundaries: &[f64], values: &[f64]) -> Vec<Formula> {
    let float = DType::F32;
    let up_to = |b: f64| of(step).is(Compare::Le, b.trunc());
    let above = |b: f64| of(step).is(Compare::Gt, b.trunc());
    let (Some(first), Some(last)) = (boundaries.first(), boundaries.last()) else { return Vec::new() };
    let mut terms = vec![up_to(*first).cast(float) * values[0]];
    terms.push(above(*last).cast(float) * values[values.len() - 1]);
    let inner = boundaries.windows(2).zip(&values[1..]);
    terms.extend(inner.map(|(ends, x)| above(ends[0]).with(Binary::And, up_to(ends[1])).cast(float) * *x));
    terms
}

/// The number of restarts after so many first periods, and the part of the period that is done.
fn period(x: Formula, t_mul: Formula, equal: bool) -> (Formula, Formula) {
    if equal {
        let restarts = x.clone().map(Unary::Floor);
        return (restarts.clone(), x - restarts);
    }
    let grown = 1.0 - x.clone() * (1.0 - t_mul.clone());
    let restarts = (grown.map(Unary::Log) / t_mul.clone().map(Unary::Log)).map(Unary::Floor);
    let length = t_mul.clone().pow(restarts.clone());
    let before = (1.0 - length.clone()) / (1.0 - t_mul);
    (restarts, (x - before) / length)
}

fn steps(fields: &Fields<'_>, key: &str) -> Result<f64, ImportError> {
    let at = fields.require(key)?;
    at.f64().ok().filter(|x| *x > 0.0).ok_or_else(|| at.expected("a number above 0"))
}

fn initial(fields: &Fields<'_>) -> Result<f64, ImportError> {
    fields.require("initial_learning_rate")?.f64()
}

fn exponential(fields: &Fields<'_>) -> Result<Kind, ImportError> {
    Ok(Kind::Exponential {
        initial: initial(fields)?,
        steps: steps(fields, "decay_steps")?,
        rate: fields.require("decay_rate")?.f64()?,
        form: Form::read(fields)?,
    })
}

fn inverse_time(fields: &Fields<'_>) -> Result<Kind, ImportError> {
    Ok(Kind::InverseTime {
        initial: initial(fields)?,
        steps: steps(fields, "decay_steps")?,
        rate: fields.require("decay_rate")?.f64()?,
        form: Form::read(fields)?,
    })
}

fn piecewise(fields: &Fields<'_>) -> Result<Kind, ImportError> {
    let numbers =
        |key: &str| -> Result<Vec<f64>, ImportError> { fields.require(key)?.array()?.iter().map(At::f64).collect() };
    let (boundaries, values) = (numbers("boundaries")?, numbers("values")?);
    if boundaries.is_empty() || values.len() != boundaries.len() + 1 {
        return Err(fields
            .require("values")?
            .expected("one value more than there are boundaries, of which there is one"));
    }
    Ok(Kind::Piecewise { boundaries, values })
}

fn polynomial(fields: &Fields<'_>) -> Result<Kind, ImportError> {
    Ok(Kind::Polynomial {
        initial: initial(fields)?,
        steps: steps(fields, "decay_steps")?,
        end: fields.f64_or("end_learning_rate", 0.0001)?,
        power: fields.f64_or("power", 1.0)?,
        after: if fields.bool_or("cycle", false)? { After::Cycle } else { After::End },
    })
}

fn cosine(fields: &Fields<'_>) -> Result<Kind, ImportError> {
    Ok(Kind::Cosine {
        initial: initial(fields)?,
        steps: steps(fields, "decay_steps")?,
        alpha: fields.f64_or("alpha", 0.0)?,
        warmup: fields.opt("warmup_target").map(|at| at.f64()).transpose()?,
        warmup_steps: fields.f64_or("warmup_steps", 0.0)?,
    })
}

fn cosine_restarts(fields: &Fields<'_>) -> Result<Kind, ImportError> {
    Ok(Kind::CosineRestarts {
        initial: initial(fields)?,
        steps: steps(fields, "first_decay_steps")?,
        t_mul: fields.f64_or("t_mul", 2.0)?,
        m_mul: fields.f64_or("m_mul", 1.0)?,
        alpha: fields.f64_or("alpha", 0.0)?,
    })
}
