//! Intwain as a library: plans a model for GPUs that are not here, splits it over two CPU devices, runs it, and keeps
//! it as a program directory.
//!
//!     cargo run --example embed

use intwain::build::{self, Request};
use intwain::verify::{self, VerifyOptions};
use intwain::{
    Catalogue, DeviceKind, Devices, HostOptions, Model, ModelOptions, ProgramDir, ProgramSession, Session,
    SessionOptions, Strategy,
};
use intwain::{Tensor, Timings};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

/// What the example found out.
#[derive(Debug)]
pub struct Findings {
    /// The strategy that is fastest on two GPUs.
    pub strategy: &'static str,
    /// Share of the weights that only one of two devices holds under a tensor split.
    pub split_weights: f64,
    /// Outputs of the model on two devices.
    pub outputs: Vec<(String, Tensor)>,
    /// Outputs of the program directory.
    pub from_program: Vec<(String, Tensor)>,
    /// Whether the split programs were proved equal to the whole.
    pub verified: bool,
}

/// Does it all, with `folder` for the program.
pub fn explore(folder: &Path) -> Result<Findings, Box<dyn Error>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/two_tower.json");
    let model = Model::open(&file, ModelOptions::default())?;
    let catalogue = Catalogue::built_in();
    let mut timings = Timings::default();

    // Plan for a machine that need not be there.
    let gpus = Request::new(catalogue.get("2xrtx4090-pcie")?, 4096);
    let plan = build::plan(&model, &gpus, &mut timings)?;

    // Split for two CPU devices, and see what is where.
    let cpus = Request::new(catalogue.get("cpu")?, 4).split(Strategy::Tensor);
    let placement = build::inspect(&model, &cpus, &mut timings)?;

    // Prove it.
    let proof = verify::verify(&model.graph(3)?, &VerifyOptions::default(), &mut timings, &mut |_| {})?;

    // Run it: five rows, whose order is kept.
    let numbers = |n: usize| (0..n).map(|i| (i % 7) as f32 / 4.0 - 0.75).collect::<Vec<_>>();
    let mut inputs = BTreeMap::new();
    for param in model.graph(5)?.inputs() {
        let shape = model.graph(5)?.ty(param.value).shape.clone();
        inputs.insert(param.name.to_string(), Tensor::from_f32(shape.clone(), &numbers(shape.elements())));
    }
    let options = SessionOptions {
        devices: Devices::two(DeviceKind::Cpu),
        split: Some(Strategy::Tensor),
        ..SessionOptions::default()
    };
    let outputs = Session::new(&model, options)?.run(&inputs)?;

    // Keep it, and run what was kept.
    let program = folder.join("two_tower");
    build::write(&program, &model, &cpus, &[], &mut timings)?;
    let dir = ProgramDir::open(&program)?;
    let from_program = ProgramSession::new(&dir, &dir.cpus(), HostOptions::default())?.run(&inputs)?;

    Ok(Findings {
        strategy: plan.strategy,
        split_weights: placement.totals.split_weight_bytes,
        outputs,
        from_program,
        verified: proof.verified,
    })
}

#[allow(dead_code, clippy::print_stdout, reason = "an example prints; its test includes it for `explore`")]
fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("intwain-embed-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let findings = explore(&folder);
    std::fs::remove_dir_all(&folder)?;
    println!("{:#?}", findings?);
    Ok(())
}
