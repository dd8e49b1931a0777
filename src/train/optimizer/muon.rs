//! Muon: steps of matrices are made orthogonal by Newton and Schulz's iteration; everything else is trained by Adam.

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::{Graph, Type, Value};

use super::Initial;
use super::adam::Moments;
use super::classes::Rule;
use super::clip::total;
use super::formula::{Formula, of};
use super::keep::Keep;
use super::read::{Common, epsilon};
use super::step::{Of, Update};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct Muon {
    moments: Moments,
    adam_weight_decay: Option<f64>,
    epsilon: f64,
    exclude_layers: Vec<String>,
    exclude_embeddings: bool,
    /// Coefficients of the iteration.
    coefficients: [f64; 3],
    adam_lr_ratio: f64,
    momentum: f64,
    steps: usize,
    nesterov: bool,
    rms_rate: Option<f64>,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    // `null` turns these off.
    let optional = |key: &str, default: f64| match fields.get(key) {
        Some(at) if at.is_null() => Ok(None),
        Some(at) => at.f64().map(Some),
        None => Ok(Some(default)),
    };
    let beta = |key: &str, default: f64| fields.f64_or(key, default);
    Ok(Arc::new(Muon {
        moments: Moments { beta_1: beta("adam_beta_1", 0.9)?, beta_2: beta("adam_beta_2", 0.999)? },
        adam_weight_decay: optional("adam_weight_decay", 0.004)?,
        epsilon: epsilon(fields, 1e-7)?,
        exclude_layers: excluded(fields)?,
        exclude_embeddings: fields.bool_or("exclude_embeddings", true)?,
        coefficients: [beta("muon_a", 3.4445)?, beta("muon_b", -4.775)?, beta("muon_c", 2.0315)?],
        adam_lr_ratio: fields.f64_or("adam_lr_ratio", 1.0)?,
        momentum: fields.f64_or("momentum", 0.95)?,
        steps: fields.usize_or("ns_steps", 5)?,
        nesterov: fields.bool_or("nesterov", true)?,
        rms_rate: optional("rms_rate", 0.2)?,
    }))
}

/// Parts of paths. Keras takes them for regular expressions.
fn excluded(fields: &Fields<'_>) -> Result<Vec<String>, ImportError> {
    let Some(list) = fields.opt("exclude_layers") else { return Ok(Vec::new()) };
    let mut parts = Vec::new();
    for at in list.array()? {
        let part = at.str()?;
        if part.contains(|c: char| "\\^$.|?*+()[]{}".contains(c)) {
            return Err(at.unsupported("a regular expression in `exclude_layers`"));
        }
        parts.push(part.to_string());
    }
    Ok(parts)
}

impl Muon {
    fn by_adam(&self, path: &str, ty: &Type) -> bool {
        ty.rank() != 2
            || self.exclude_embeddings && path.to_lowercase().contains("embedding")
            || self.exclude_layers.iter().any(|part| path.contains(part.as_str()))
    }

    fn adam(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let rate = (cx.rate(cx.float) * self.adam_lr_ratio).cast(v.ty.dtype);
        let alpha = self.moments.corrected(cx, rate, v.ty.dtype)?;
        let (m, s) = self.moments.update(cx, v)?;
        Ok(of(v.value) - m * alpha / (s.sqrt() + self.epsilon))
    }

    /// The nearest matrix whose rows, or columns where they are fewer, are orthogonal to each other.
    fn orthogonal(&self, g: &mut Graph, x: Value) -> Result<Value, TypeError> {
        let [a, b, c] = self.coefficients;
        let tall = g.shape(x)[0] > g.shape(x)[1];
        let x = if tall { g.transpose(x, &[1, 0])? } else { x };
        let squares = of(x).square().build(g)?;
        let norm = of(total(g, squares)?).sqrt();
        let mut x = (of(x) / (norm + 1e-7)).build(g)?;
        for _ in 0..self.steps {
            let transposed = g.transpose(x, &[1, 0])?;
            let gram = g.matmul(x, transposed)?;
            let scaled = (c * of(gram)).build(g)?;
            let fourth = g.matmul(scaled, gram)?;
            let factor = (b * of(gram) + of(fourth)).build(g)?;
            let product = g.matmul(factor, x)?;
            x = (a * of(x) + of(product)).build(g)?;
        }
        if tall { g.transpose(x, &[1, 0]) } else { Ok(x) }
    }
}

impl Rule for Muon {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        for (i, (path, ty)) in keep.variables().iter().enumerate() {
            keep.like(scope, i, "momentum", Initial::Filled(0.0));
            if self.by_adam(path, ty) {
                keep.like(scope, i, "velocity", Initial::Filled(0.0));
            }
        }
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        if self.by_adam(v.path, &v.ty) {
            return self.adam(cx, v);
        }
        let m = cx.slot("momentum", Some(v.index))?;
        let m = cx.set("momentum", Some(v.index), m.clone() + (of(v.gradient) + m * (self.momentum - 1.0)))?;
        let direction = if self.nesterov { of(v.gradient) + self.momentum * m } else { m };
        let direction = direction.build(cx.g)?;
        let step = of(self.orthogonal(cx.g, direction)?);
        let mut step = cx.rate(v.ty.dtype) * step;
        if let Some(rate) = self.rms_rate {
            let longer = v.ty.shape.iter().copied().max().unwrap_or(1) as f64;
            step = step * longer.sqrt() * rate;
        }
        Ok(of(v.value) - step)
    }

    fn decay(&self, common: &Common, path: &str, ty: &Type) -> Option<f64> {
        if self.by_adam(path, ty) { self.adam_weight_decay } else { common.weight_decay }
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        let optional = |x: Option<f64>| x.map_or(Json::Null, Json::Float);
        let [a, b, c] = self.coefficients;
        let excluded = self.exclude_layers.iter().map(|part| Json::String(part.clone())).collect();
        vec![
            ("adam_beta_1", Json::Float(self.moments.beta_1)),
            ("adam_beta_2", Json::Float(self.moments.beta_2)),
            ("epsilon", Json::Float(self.epsilon)),
            ("exclude_layers", Json::Array(excluded)),
            ("muon_a", Json::Float(a)),
            ("muon_b", Json::Float(b)),
            ("muon_c", Json::Float(c)),
            ("adam_lr_ratio", Json::Float(self.adam_lr_ratio)),
            ("momentum", Json::Float(self.momentum)),
            ("ns_steps", Json::Int(self.steps as i64)),
            ("nesterov", Json::Bool(self.nesterov)),
            ("exclude_embeddings", Json::Bool(self.exclude_embeddings)),
            ("adam_weight_decay", optional(self.adam_weight_decay)),
            ("rms_rate", optional(self.rms_rate)),
        ]
    }
}
