//! The driver of emulated devices, and devices that fail.

mod failing;
mod late;

use super::driver::{Address, Driver, DriverError, Reach, Shape};
use super::emulated;
use crate::driver::{self as compiler, Compiled};
use crate::runtime::{Call, DeviceError, Effects, Engines, LoadError, Variant, run};
use failing::Failing;
use intwain_codegen::schedule::gpu::Gpu;
use intwain_ir::{DType, Graph, Rows, Tensor, Trainable, Type, interp};
use intwain_passes::Timings;
use intwain_passes::hardware::Catalogue;
use intwain_passes::listing::Stream;
use intwain_passes::place::{self, Strategy};
use late::{Heed, Late};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ONE: Shape = Shape { grid: [1, 1, 1], block: [1, 1, 1], shared: 0 };

/// A kernel that says to the peer that round 1 has begun, waits until the peer has said so, and the same for round 2.
const ROUNDS: &str = "
.version 7.4
.target sm_80
.address_size 64
.visible .entry rounds(.param .u64 own, .param .u64 peer)
{
    .reg .pred %p<2>;
    .reg .u32 %r<4>;
    .reg .u64 %a<3>;
    ld.param.u64 %a1, [own];
    ld.param.u64 %a2, [peer];
    mov.u32 %r1, 0;
next:
    add.u32 %r1, %r1, 1;
    st.release.sys.global.u32 [%a2], %r1;
wait:
    ld.acquire.sys.global.u32 %r2, [%a1];
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra wait;
    setp.lt.u32 %p1, %r1, 2;
    @%p1 bra next;
    ret;
}
";

fn flags(drivers: &[Arc<dyn Driver>]) -> [Address; 2] {
    [0, 1].map(|d: usize| {
        let at = drivers[d].allocate(4, Reach::Own).unwrap();
        drivers[d].clear(at, 4).unwrap();
        at
    })
}

/// Neither kernel ends before the other has begun its second round: one after the other they would wait for ever.
#[test]
fn devices_run_at_the_same_time() {
    let drivers = emulated::open(&[0, 1], 1, Effects::Late);
    let flags = flags(&drivers);
    std::thread::scope(|scope| {
        for d in 0..2 {
            let driver = &drivers[d];
            scope.spawn(move || {
                let module = driver.load(ROUNDS, &["rounds".to_string()]).unwrap();
                module.launch(Stream::Compute, 0, ONE, &[flags[d], flags[1 - d]]).unwrap();
            });
        }
    });
    for (driver, at) in drivers.iter().zip(flags) {
        let mut last = [0; 4];
        driver.read(at, &mut last).unwrap();
        assert_eq!(u32::from_le_bytes(last), 2);
    }
}

#[test]
fn a_kernel_that_waits_can_be_stopped() {
    let drivers = emulated::open(&[0, 1], 1, Effects::Late);
    let flags = flags(&drivers);
    let module = drivers[0].load(ROUNDS, &["rounds".to_string()]).unwrap();
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            drivers[0].stop();
        });
        assert_eq!(module.launch(Stream::Compute, 0, ONE, &[flags[0], flags[1]]), Err(DriverError::Stopped));
        stop.join().unwrap();
    });
}

#[test]
fn what_is_wrong_is_said_with_the_device() {
    let driver = &emulated::open(&[3], 1, Effects::Late)[0];
    let said = |e: DriverError| e.to_string();
    let text = ROUNDS.replace("add.u32", "add.u33");
    let refused = driver.load(&text, &["rounds".to_string()]).err().unwrap();
    assert!(said(refused.clone()).starts_with("ptx:3") && said(refused).contains("add.u33"));
    let refused = driver.load(ROUNDS, &["other".to_string()]).err().unwrap();
    assert!(said(refused).contains("`other`"));
    let at = driver.allocate(4, Reach::Own).unwrap();
    let fault = driver.read(at, &mut [0; 4]).unwrap_err();
    assert!(said(fault).contains("uninitialised"));
    let module = driver.load(ROUNDS, &["rounds".to_string()]).unwrap();
    let fault = said(module.launch(Stream::Compute, 0, ONE, &[at, Address(64)]).unwrap_err());
    assert!(fault.contains("ptx:3") && fault.contains("rounds") && fault.contains("out of bounds"), "{fault}");
    driver.free(at, Reach::Own);
    assert!(driver.write(at, &[0; 4]).is_err());
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A chain of products, each of which adds up partial sums of both devices or is gathered from them.
fn chain() -> Graph {
    let mut g = Graph::new("chain");
    let mut h = g.input("x", Type::new(DType::F32, [3, 8]), Rows::Batched);
    for i in 0..4 {
        let w = g.weight(&format!("w{i}"), Type::new(DType::F32, [8, 8]), Trainable::Yes);
        h = g.matmul(h, w).unwrap();
    }
    g.output("y", h);
    g
}

/// The chain divided over two devices, with arguments and what the interpreter makes of them.
struct Divided {
    compiled: Compiled,
    args: Vec<Tensor>,
    want: Vec<Tensor>,
}

impl Divided {
    fn new(strategy: Strategy) -> Divided {
        let whole = chain();
        let args: Vec<Tensor> =
            whole.params.iter().enumerate().map(|(i, p)| small_integers(whole.ty(p.value), i)).collect();
        let want = interp::run(&whole, args.clone()).unwrap();
        let mut timings = Timings::default();
        let graph = compiler::prepare(whole, intwain_passes::Numerics::Free, &mut timings, &mut |_, _| {}).unwrap();
        let ask = place::Options { strategy: Some(strategy), ..place::Options::default() };
        let hardware = Catalogue::built_in().get("2xa100-nvlink").unwrap();
        let plan = compiler::plan(&graph, &hardware, ask, &mut timings).unwrap();
        let compiled = compiler::lower(graph, plan, &Gpu::default(), &mut timings, &mut |_, _| {}).unwrap();
        Divided { compiled, args, want }
    }

    /// The program on emulated devices that `wrap` changes.
    fn load(&self, wrap: impl Fn(usize, Arc<dyn Driver>) -> Arc<dyn Driver>) -> Variant {
        self.load_on(&engines(wrap))
    }

    fn load_on(&self, engines: &Engines) -> Variant {
        let weight = |i: usize| Ok(self.args[i].clone());
        Variant::new::<Failed>(self.compiled.loadable(), engines, weight).unwrap()
    }

    fn run(&self, variant: &mut Variant, calls: usize) -> Result<Vec<Tensor>, DeviceError> {
        let mut out: Vec<Tensor> = self.want.iter().map(|t| Tensor::zeros(t.ty.clone())).collect();
        run(&mut [variant], &vec![Call { variant: 0, rows: None }; calls], &[&self.args[0]], &mut out)?;
        Ok(out)
    }
}

/// Two emulated devices that `wrap` changes.
fn engines(wrap: impl Fn(usize, Arc<dyn Driver>) -> Arc<dyn Driver>) -> Engines {
    let drivers = emulated::open(&[0, 1], 1, Effects::Late).into_iter().enumerate();
    Engines::Gpu(drivers.map(|(d, driver)| wrap(d, driver)).collect(), Gpu::default())
}

fn small_integers(ty: &Type, seed: usize) -> Tensor {
    let values: Vec<f32> = (0..ty.shape.elements()).map(|i| ((i * 7 + seed) % 5) as f32 - 2.0).collect();
    Tensor::from_f32(ty.shape.clone(), &values)
}

/// Whichever launch fails on whichever device: the other stops at once, the cause is reported, and the next call is
/// right again.
#[test]
fn a_device_that_fails_stops_the_other() {
    let divided = Divided::new(Strategy::Tensor);
    let left = [0, 1].map(|_| Arc::new(AtomicUsize::new(usize::MAX)));
    let mut variant = divided.load(|d, inner| Arc::new(Failing { inner, left: left[d].clone() }));
    let start = Instant::now();
    for (device, at) in [(0, 0), (1, 0), (1, 1), (0, 3), (1, 4)] {
        left[device].store(at, Ordering::Relaxed);
        match divided.run(&mut variant, 1) {
            Err(DeviceError::Gpu { problem: DriverError::Fault { problem, .. }, .. }) => {
                assert_eq!(problem, "on purpose");
            }
            other => panic!("device {device}, launch {at}: {other:?}"),
        }
        let after = divided.run(&mut variant, 1).unwrap();
        assert_eq!(after, divided.want, "after launch {at} of device {device} has failed");
    }
    assert!(start.elapsed() < Duration::from_secs(10), "a device waited for one that had failed");
}

/// Programs that are loaded after a failure, and those that were there and took no part in it, are right.
#[test]
fn devices_serve_other_programs_after_a_failure() {
    let divided = Divided::new(Strategy::Tensor);
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let engines = engines(|d, inner| match d {
        0 => Arc::new(Failing { inner, left: left.clone() }),
        _ => inner,
    });
    let (mut failing, mut idle) = (divided.load_on(&engines), divided.load_on(&engines));
    left.store(1, Ordering::Relaxed);
    assert!(divided.run(&mut failing, 1).is_err());
    drop(failing);
    assert_eq!(divided.run(&mut divided.load_on(&engines), 1).as_ref(), Ok(&divided.want));
    idle.distrust();
    assert_eq!(divided.run(&mut idle, 2).as_ref(), Ok(&divided.want));
}

#[test]
fn events_order_streams() {
    for strategy in [Strategy::Tensor, Strategy::Pipeline] {
        let divided = Divided::new(strategy);
        let late = |heed| divided.load(|_, inner| Arc::new(Late { inner, queues: Arc::default(), heed }));
        assert_eq!(divided.run(&mut late(Heed::Events), 3).as_ref(), Ok(&divided.want), "{strategy}");
        let unordered = divided.run(&mut late(Heed::Nothing), 1);
        assert_ne!(unordered.as_ref().ok(), Some(&divided.want), "{strategy}: events change nothing");
    }
}
