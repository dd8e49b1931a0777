//! Reading an optimizer: a name, or what Keras 3, Keras 2 or its older optimizers serialise.

use std::ops::RangeInclusive;

use super::classes::{CLASSES, Class, WeightDecay};
use super::clip::Clip;
use super::loss_scale::LossScale;
use super::{Inner, Optimizer};
use crate::frontend::{At, Fields, ImportError, Json};
use crate::train::schedule::{Rate, Schedule};

/// What every optimizer can be told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Common {
    pub(super) weight_decay: Option<f64>,
    pub(super) clip: Option<Clip>,
    pub(super) clips: [Option<f64>; 3],
    pub(super) ema: Option<Ema>,
    pub(super) loss_scale_factor: Option<f64>,
    pub(super) gradient_accumulation_steps: Option<usize>,
}

/// Averages of the variables over the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ema {
    pub(super) momentum: f64,
    pub(super) overwrite_frequency: Option<usize>,
}

/// A number in a range.
pub(super) fn within(
    fields: &Fields<'_>,
    key: &str,
    default: f64,
    range: RangeInclusive<f64>,
) -> Result<f64, ImportError> {
    let x = fields.f64_or(key, default)?;
    if range.contains(&x) {
        return Ok(x);
    }
    let limits = format!("a number from {} to {}", range.start(), range.end());
    Err(fields.require(key)?.accepted(&[&limits]))
}

/// A number; where none is given or `null` is, as Keras 2 writes it, the default.
pub(super) fn epsilon(fields: &Fields<'_>, default: f64) -> Result<f64, ImportError> {
    fields.f64_or("epsilon", default)
}

/// A name or an object with class and configuration.
struct Named<'j> {
    class: At<'j>,
    config: At<'j>,
    /// Where Keras 3 has the class.
    module: Option<At<'j>>,
}

const EMPTY: &Json = &Json::Null;

impl<'j> Named<'j> {
    fn of(at: &At<'j>) -> Result<Named<'j>, ImportError> {
        if at.json.as_str().is_some() {
            return Ok(Named { class: at.clone(), config: At { json: EMPTY, ..at.clone() }, module: None });
        }
        let config = at.get("config").unwrap_or(At { json: EMPTY, ..at.clone() });
        Ok(Named { class: at.require("class_name")?, config, module: at.get("module") })
    }

    fn class(&self) -> Result<String, ImportError> {
        let name = self.class.str()?;
        Ok(name.trim_start_matches("Custom>").trim_start_matches("Experimental>").to_ascii_lowercase())
    }
}

impl Optimizer {
    /// An optimizer's name as `compile` takes it, or what Keras serialises: `{"class_name": …, "config": {…}}`.
    pub fn read(at: &At<'_>) -> Result<Optimizer, ImportError> {
        let named = Named::of(at)?;
        if !matches!(named.class()?.as_str(), "lossscaleoptimizer" | "lossscaleoptimizerv3") {
            return Ok(Optimizer { inner: Inner::read(&named)?, scale: None });
        }
        let fields = named.config.fields()?;
        fields.irrelevant(&["is_legacy_optimizer", "jit_compile"]);
        let mut inner = Inner::read(&Named::of(&fields.require("inner_optimizer")?)?)?;
        let scale = LossScale::read(&fields)?;
        refuse_rest(&fields)?;
        // A scale that is not dynamic is what Keras 3 calls a factor.
        let (scale, factor) = scale.fixed();
        inner.common.loss_scale_factor = factor;
        Ok(Optimizer { inner, scale })
    }
}

fn refuse_rest(fields: &Fields<'_>) -> Result<(), ImportError> {
    fields.finish().into_iter().next().map_or(Ok(()), Err)
}

impl Inner {
    fn read(named: &Named<'_>) -> Result<Inner, ImportError> {
        let wanted = named.class()?;
        if wanted == "multioptimizer" {
            return Err(named.class.unsupported("an optimizer of several, which take variables by their paths,"));
        }
        let names: Vec<&str> = CLASSES.iter().map(|class| class.name).chain(["LossScaleOptimizer"]).collect();
        let class = CLASSES.iter().find(|class| class.name.eq_ignore_ascii_case(&wanted));
        let class = class.ok_or_else(|| named.class.accepted(&names))?;
        if named.config.is_null() {
            let none = Json::Object(Default::default());
            return Inner::configured(class, &At { json: &none, ..named.config.clone() });
        }
        // Keras 3 has no `decay` and passes over it: nobody would have trained with it.
        let decay = named.config.get("decay").filter(|at| at.f64().is_ok_and(|x| x != 0.0));
        match (decay, &named.module) {
            (Some(at), Some(module)) if module.json.as_str() == Some("keras.optimizers") => {
                Err(at
                    .unsupported("`decay`, which Keras 3 does not heed: an InverseTimeDecay as `learning_rate` is; it"))
            }
            _ => Inner::configured(class, &named.config),
        }
    }

    fn configured(class: &'static Class, config: &At<'_>) -> Result<Inner, ImportError> {
        let fields = config.fields()?;
        let name = fields.opt("name").map(|at| at.str()).transpose()?.unwrap_or(class.default_name).to_string();
        let common = Common::read(class, &fields)?;
        let rate = rate(class, &fields)?;
        fields.irrelevant(&["is_legacy_optimizer", "jit_compile"]);
        let rule = (class.read)(&fields)?;
        refuse_rest(&fields)?;
        Ok(Inner { class, name, rate, common, rule })
    }
}

/// The rate, with the `decay` of Keras 2's older optimizers.
fn rate(class: &Class, fields: &Fields<'_>) -> Result<Rate, ImportError> {
    let given = fields.opt_any(&["learning_rate", "lr"]);
    let rate = given.as_ref().map(Rate::read).transpose()?.unwrap_or(Rate::Constant(class.rate));
    let decay = fields.f64_or("decay", 0.0)?;
    match rate {
        Rate::Constant(rate) if decay != 0.0 => Ok(Rate::Schedule(Schedule::decaying(rate, decay))),
        Rate::Schedule(_) if decay != 0.0 => {
            Err(fields.require("decay")?.unsupported("`decay` beside a learning-rate schedule"))
        }
        Rate::Constant(_) | Rate::Schedule(_) => Ok(rate),
    }
}

impl Common {
    fn read(class: &Class, fields: &Fields<'_>) -> Result<Common, ImportError> {
        let number = |key: &str| fields.opt(key).map(|at| at.f64()).transpose();
        let clips = [number("clipnorm")?, number("global_clipnorm")?, number("clipvalue")?];
        if clips.iter().flatten().count() > 1 {
            return Err(fields.at().expected("only one of `clipnorm`, `global_clipnorm` and `clipvalue`"));
        }
        // Keras takes a limit of 0 or less for none.
        let kinds = [Clip::Norm, Clip::Global, Clip::Value];
        let clip = clips.iter().zip(kinds).find_map(|(limit, kind)| limit.filter(|x| *x > 0.0).map(kind));
        Ok(Common {
            weight_decay: weight_decay(class, fields)?,
            clip,
            clips,
            ema: Ema::read(fields)?,
            loss_scale_factor: number("loss_scale_factor")?,
            gradient_accumulation_steps: accumulation(fields)?,
        })
    }

    /// Its keys of a configuration.
    pub(super) fn config(&self) -> Vec<(&'static str, Json)> {
        let number = |x: Option<f64>| x.map_or(Json::Null, Json::Float);
        let count = |n: Option<usize>| n.map_or(Json::Null, |n| Json::Int(n as i64));
        let ema = self.ema.unwrap_or(Ema { momentum: 0.99, overwrite_frequency: None });
        vec![
            ("weight_decay", number(self.weight_decay)),
            ("clipnorm", number(self.clips[0])),
            ("global_clipnorm", number(self.clips[1])),
            ("clipvalue", number(self.clips[2])),
            ("use_ema", Json::Bool(self.ema.is_some())),
            ("ema_momentum", Json::Float(ema.momentum)),
            ("ema_overwrite_frequency", count(ema.overwrite_frequency)),
            ("loss_scale_factor", number(self.loss_scale_factor)),
            ("gradient_accumulation_steps", count(self.gradient_accumulation_steps)),
        ]
    }
}

fn weight_decay(class: &Class, fields: &Fields<'_>) -> Result<Option<f64>, ImportError> {
    let given = fields.get("weight_decay").filter(|at| *at.json != Json::Bool(false));
    match (given, class.weight_decay) {
        (Some(at), WeightDecay::Always(_)) => Ok(Some(at.f64()?)),
        (Some(at), WeightDecay::No | WeightDecay::By(_)) if at.is_null() => Ok(None),
        (Some(at), WeightDecay::No | WeightDecay::By(_)) => Ok(Some(at.f64()?)),
        (None, WeightDecay::No) => Ok(None),
        (None, WeightDecay::By(x) | WeightDecay::Always(x)) => Ok(Some(x)),
    }
}

fn accumulation(fields: &Fields<'_>) -> Result<Option<usize>, ImportError> {
    let Some(at) = fields.opt("gradient_accumulation_steps") else { return Ok(None) };
    match at.usize()? {
        0 => Ok(None),
        1 => Err(at.expected("an integer of at least 2")),
        n => Ok(Some(n)),
    }
}

impl Ema {
    fn read(fields: &Fields<'_>) -> Result<Option<Ema>, ImportError> {
        let used = fields.bool_or("use_ema", false)?;
        fields.irrelevant(&["ema_momentum", "ema_overwrite_frequency"]);
        if !used {
            return Ok(None);
        }
        let momentum = within(fields, "ema_momentum", 0.99, 0.0..=1.0)?;
        let overwrite_frequency = fields.opt("ema_overwrite_frequency").map(|at| at.usize()).transpose()?;
        Ok(Some(Ema { momentum, overwrite_frequency: overwrite_frequency.filter(|n| *n > 0) }))
    }
}
