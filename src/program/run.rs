//! Runs a program directory.

use super::read::{ProgramDir, ProgramVariant};
use super::{COMPILER, ProgramError};
use crate::lookups::{self, Lookup};
use crate::report;
use crate::runtime::{self, Call, DeviceKind, Devices, Engines, HostOptions, Pool, Variant, WeightReader};
use crate::session::{FixedRows, RunError, check_lookups, check_types, count_rows, keeps_rows_apart, order, with_rows};
use intwain_codegen::schedule::gpu::Precision;
use intwain_ir::{Graph, Tensor};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// A program with the memory and threads to run it.
#[derive(Debug)]
pub struct ProgramSession<'d> {
    dir: &'d ProgramDir,
    kind: DeviceKind,
    engines: Engines,
    /// Inputs that are positions in tables.
    lookups: Vec<Lookup>,
    /// The loaded variants, by their place in the directory.
    loaded: Vec<(usize, Variant)>,
    /// The weights that variants have in memory.
    pool: Pool,
}

impl<'d> ProgramSession<'d> {
    /// Opens devices, as many as the program was compiled for; `host` says how this machine
    /// executes those that are not GPUs.
    pub fn new(dir: &'d ProgramDir, devices: &Devices, host: HostOptions) -> Result<ProgramSession<'d>, ProgramError> {
        dir.refuse_training()?;
        dir.fits(devices)?;
        let kind = devices.kind();
        // The code is there already, in the precision that it was compiled for.
        let engines = Engines::open(devices, Precision::F32, host).map_err(RunError::from)?;
        let lookups = lookups::find(&dir.variants()[0].whole);
        Ok(ProgramSession { dir, kind, engines, lookups, loaded: Vec::new(), pool: Pool::default() })
    }

    /// What the program takes and gives.
    pub fn signature(&self) -> &Graph {
        &self.dir.variants()[0].whole
    }

    /// Runs the program on all rows of the inputs, in order. The last call is filled with copies of the last row where
    /// no variant has its number of rows.
    pub fn run(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<(String, Tensor)>, ProgramError> {
        let signature = self.signature();
        let mut ordered = order(signature, inputs)?;
        check_lookups(signature, &self.lookups, &ordered)?;
        let batched = keeps_rows_apart(signature);
        let total = if batched { count_rows(signature, &ordered)? } else { 0 };
        let calls = if batched { self.calls(total) } else { vec![(self.whole(&ordered)?, None)] };
        // Of the graph of a program nobody knows whether its rows were asked for.
        if let Some(fixed) = report::batch(signature).and_then(|rows| FixedRows::of(signature, rows)) {
            fixed.batch(batched.then_some(total), None)?;
        }
        let padded = calls.iter().filter_map(|c| c.1.as_ref().map(|r| r.end)).max().unwrap_or(total);
        if padded > total {
            ordered = ordered.iter().map(|t| Cow::Owned(pad(t, padded))).collect();
        }
        let mut plan = Vec::new();
        for (variant, rows) in calls {
            plan.push(Call { variant: self.load(variant)?, rows });
        }
        let resized = |o: &crate::driver::Port, rows| if batched { with_rows(&o.ty, rows) } else { o.ty.clone() };
        let ports = &self.dir.variants()[0].outputs;
        let mut outputs: Vec<Tensor> = ports.iter().map(|o| Tensor::zeros(resized(o, padded))).collect();
        if !plan.is_empty() {
            let mut variants: Vec<&mut Variant> = self.loaded.iter_mut().map(|v| &mut v.1).collect();
            let ordered: Vec<&Tensor> = ordered.iter().map(AsRef::as_ref).collect();
            let done = runtime::run(&mut variants, &plan, &ordered, &mut outputs);
            done.map_err(|e| foreign(self.dir, self.kind, e.into()))?;
        }
        let cut = |t: Tensor| if batched && t.ty.rank() > 0 { t.slice(0, 0..total) } else { t };
        Ok(ports.iter().map(|o| o.name.to_string()).zip(outputs.into_iter().map(cut)).collect())
    }

    /// Makes the states zero that stateful layers keep from call to call, and from one [`ProgramSession::run`] to the next.
    pub fn reset_states(&mut self) -> Result<(), ProgramError> {
        let done = self.loaded.iter_mut().try_for_each(|l| l.1.forget());
        done.map_err(|e| foreign(self.dir, self.kind, e.into()))
    }

    /// The variant and the rows of each call.
    fn calls(&self, total: usize) -> Vec<(usize, runtime::Rows)> {
        let rows = |v: &ProgramVariant| v.rows.unwrap_or(1).max(1);
        let variants = self.dir.variants();
        let full = rows(&variants[0]);
        let mut calls = Vec::new();
        let mut at = 0;
        while at < total {
            let left = total - at;
            // The smallest variant that takes all that is left, else the one for full calls.
            let fitting = (0..variants.len()).filter(|&v| rows(&variants[v]) >= left.min(full));
            let chosen = fitting.min_by_key(|&v| (rows(&variants[v]), v)).unwrap_or(0);
            let size = rows(&variants[chosen]);
            calls.push((chosen, Some(at..at + size)));
            at += size;
        }
        calls
    }

    /// The variant for a model without a row axis, which is called once.
    fn whole(&self, inputs: &[Cow<'_, Tensor>]) -> Result<usize, ProgramError> {
        let fits = |v: &ProgramVariant| check_types(&v.whole, inputs);
        let variants = self.dir.variants();
        variants.iter().position(|v| fits(v).is_ok()).ok_or_else(|| {
            let why = fits(&variants[0]).err().map_or(String::new(), |e| e.to_string());
            let takes = variants[0].whole.inputs().map(|p| variants[0].whole.shape(p.value).first());
            let given = inputs.iter().map(|t| t.ty.shape.first());
            let rows =
                takes.zip(given).find(|(takes, given)| takes != given).and_then(|(_, given)| given).unwrap_or(&1);
            let problem =
                format!("mixes rows, so that a call cannot be filled up: {why}; compile the model with --batch {rows}");
            self.dir.unusable(problem)
        })
    }

    /// Memory for a variant, with the weights in it; its place among the loaded.
    fn load(&mut self, variant: usize) -> Result<usize, ProgramError> {
        if let Some(at) = self.loaded.iter().position(|l| l.0 == variant) {
            return Ok(at);
        }
        let dir = self.dir;
        let program = &dir.variants()[variant];
        let loadable = program.loadable(self.kind).map_err(|why| dir.unusable(why))?;
        let loaded = Variant::sharing(loadable, &self.engines, &self.pool, Stored { dir, program });
        let loaded = loaded.map_err(|e| foreign(dir, self.kind, e))?;
        self.loaded.push((variant, loaded));
        Ok(self.loaded.len() - 1)
    }
}

/// The weights of a directory, for the parameters of a program.
struct Stored<'d> {
    dir: &'d ProgramDir,
    program: &'d ProgramVariant,
}

impl WeightReader<RunError> for Stored<'_> {
    fn read(&mut self, param: usize, rows: Range<usize>, to: &mut [u8]) -> Result<(), RunError> {
        let read = self.dir.weight_rows(&self.program.params[param].name, rows, to);
        read.map_err(|e| RunError::Options(e.to_string()))
    }
}

/// What went wrong with PTX, which is this compiler's fault only if this compiler made it.
fn foreign(dir: &ProgramDir, kind: DeviceKind, e: RunError) -> ProgramError {
    let by = &dir.manifest().compiler;
    let of_code = match &e {
        RunError::Device(_) => true,
        RunError::Load(why) => why.is_defect(),
        RunError::Model(_)
        | RunError::Compile(_)
        | RunError::Input { .. }
        | RunError::Open(_)
        | RunError::Options(_) => false,
    };
    if kind == DeviceKind::Cpu || by == COMPILER || !of_code {
        return e.into();
    }
    dir.unusable(format!("its PTX, made by intwain {by}, does not run: {e}; compile again"))
}

/// A tensor with copies of its last row behind it.
fn pad(t: &Tensor, rows: usize) -> Tensor {
    let have = t.ty.shape.first().copied().unwrap_or(0);
    let mut data = t.data.clone();
    if let Some(row) = t.data.len().checked_div(have) {
        for _ in have..rows {
            data.extend_from_within((have - 1) * row..have * row);
        }
    }
    Tensor { ty: with_rows(&t.ty, rows), data }
}
