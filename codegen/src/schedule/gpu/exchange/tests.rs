//! Exchanges on two emulated devices that share peer memory, each in a thread of its own.

use super::{Exchange, ExchangeArgument, FLAG_BYTES};
use crate::ptx;
use crate::schedule::gpu::Gpu;
use intwain_emulator::{AddressSpace, Arg, Device, Launch, Module};
use intwain_ir::interp::run_devices;
use intwain_ir::kernel::{Entry, verify};
use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::Reduce;
use intwain_ir::{DType, Graph, Rows, Scalar, Stage, Tensor, Type};
use std::time::Duration;

/// A communication on both devices.
type Ends = [Op; 2];
/// What both devices give or get.
type Both = [Vec<Tensor>; 2];

/// Which device comes late to every use.
#[derive(Clone, Copy)]
enum Slow {
    Neither,
    Device(usize),
}

/// What a device got from every use, or why it stopped.
type Outcome = Result<Vec<Vec<Tensor>>, String>;

/// One device's end, ready to run.
struct End {
    device: Device,
    exchange: Option<(Exchange, Module)>,
    operands: Vec<u64>,
    results: Vec<(u64, Type)>,
    mailboxes: [u64; 2],
}

impl End {
    fn new(device: Device, exchange: Option<(Exchange, String)>, (operands, results): &Types) -> End {
        let room = |ty: &Type| device.alloc(ty.bytes().max(1) as u64).unwrap();
        let operands = operands.iter().map(room).collect();
        let results = results.iter().map(|ty| (room(ty), ty.clone())).collect();
        let exchange = exchange.map(|(e, text)| {
            let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            (e, module)
        });
        End { device, exchange, operands, results, mailboxes: [0; 2] }
    }

    /// One use of the channel.
    fn once(&self, operands: &[Tensor]) -> Result<Vec<Tensor>, String> {
        for (at, x) in self.operands.iter().zip(operands) {
            self.device.write(*at, &x.data).map_err(|e| e.to_string())?;
        }
        if let Some((exchange, module)) = &self.exchange {
            let Entry::Grid { blocks, threads } = exchange.kernel.entry else { panic!("not a GPU kernel") };
            let address = |a: &ExchangeArgument| match *a {
                ExchangeArgument::Operand(i) => self.operands[i],
                ExchangeArgument::Result(i) => self.results[i].0,
                ExchangeArgument::Mailbox(at) => self.mailboxes[0] + at as u64,
                ExchangeArgument::PeerMailbox(at) => self.mailboxes[1] + at as u64,
            };
            let args: Vec<Arg> = exchange.args.iter().map(|a| Arg::U64(address(a))).collect();
            let shape = Launch { grid: blocks, block: threads, shared: exchange.kernel.buffer_offsets().1 as u32 };
            let done = self.device.launch(module, &exchange.kernel.name, shape, &args);
            done.map_err(|e| e.to_string())?;
        }
        let read = |(at, ty): &(u64, Type)| {
            let mut y = Tensor::zeros(ty.clone());
            self.device.read(*at, &mut y.data).map_err(|e| e.to_string()).map(|()| y)
        };
        self.results.iter().map(read).collect()
    }
}

/// Types of operands and results.
type Types = (Vec<Type>, Vec<Type>);

fn types(ends: &Ends, operands: &Both) -> [Types; 2] {
    [0, 1].map(|d| {
        let operands: Vec<Type> = operands[d].iter().map(|t| t.ty.clone()).collect();
        let results = ends[d].infer(&operands.iter().collect::<Vec<_>>()).unwrap().to_vec();
        (operands, results)
    })
}

fn exchanges(ends: &Ends, operands: &Both) -> [Option<Exchange>; 2] {
    let types = types(ends, operands);
    let made = [0, 1].map(|d| {
        let (operands, results) = &types[d];
        let (args, results): (Vec<&Type>, Vec<&Type>) = (operands.iter().collect(), results.iter().collect());
        let members = ends[d].members(&args, &results).unwrap();
        Gpu::default().exchange("exchange", &members, &args, &results)
    });
    for d in 0..2 {
        if let Some(e) = &made[d] {
            verify(&e.kernel).unwrap_or_else(|f| panic!("{}\n{}", f[0], e.kernel));
            let peers = made[1 - d].as_ref().map_or(0, |p| p.mailbox);
            assert_eq!(e.peer_mailbox, peers, "devices agree on mailboxes");
            let blocks = |e: &Exchange| e.kernel.entry.clone();
            if e.mailbox + e.peer_mailbox > 0 {
                assert_eq!(blocks(e), blocks(made[1 - d].as_ref().unwrap()), "devices agree on blocks");
            }
        }
    }
    made
}

/// Uses a channel once for each pair of operands, with the text of the kernels changed; what each device got.
fn run_changed(
    ends: &Ends,
    uses: &[Both],
    slow: Slow,
    patience: Duration,
    change: &dyn Fn(usize, String) -> String,
) -> [Outcome; 2] {
    let space = AddressSpace::default();
    let types = types(ends, &uses[0]);
    let mut both = exchanges(ends, &uses[0]).into_iter().enumerate().map(|(d, exchange)| {
        let mut device = Device::new(&space, d as u32);
        device.patience = patience;
        device.global_races = intwain_emulator::Check::On;
        let exchange = exchange.map(|e| {
            let text = change(d, ptx::module(&[&e.kernel]).unwrap());
            (e, text)
        });
        End::new(device, exchange, &types[d])
    });
    let mut both = [both.next().unwrap(), both.next().unwrap()];
    let mailboxes = [0, 1].map(|d: usize| {
        let bytes = both[d].exchange.as_ref().map_or(0, |e| e.0.mailbox);
        let at = both[d].device.alloc(bytes.max(1) as u64).unwrap();
        both[d].device.write(at, &[0; FLAG_BYTES][..bytes.min(FLAG_BYTES)]).unwrap();
        at
    });
    both[0].mailboxes = mailboxes;
    both[1].mailboxes = [mailboxes[1], mailboxes[0]];
    std::thread::scope(|scope| {
        let workers = [0, 1].map(|d: usize| {
            let end = &both[d];
            scope.spawn(move || {
                let mut got = Vec::new();
                for operands in uses {
                    if matches!(slow, Slow::Device(s) if s == d) {
                        std::thread::sleep(Duration::from_millis(30));
                    }
                    got.push(end.once(&operands[d])?);
                }
                Ok(got)
            })
        });
        workers.map(|w| w.join().unwrap())
    })
}

fn run(ends: &Ends, uses: &[Both], slow: Slow) -> Vec<Both> {
    let [a, b] = run_changed(ends, uses, slow, Duration::from_secs(60), &|_, text| text).map(Result::unwrap);
    a.into_iter().zip(b).map(|(a, b)| [a, b]).collect()
}

/// The interpreter's results.
fn want(ends: &Ends, operands: &Both) -> Both {
    let graphs: Vec<Graph> = (0..2)
        .map(|d| {
            let mut g = Graph::new("one");
            (g.stage, g.devices, g.device) = (Stage::Local, 2, d);
            let inputs = operands[d].iter().enumerate();
            let x: Vec<_> = inputs.map(|(i, t)| g.input(&format!("x{i}"), t.ty.clone(), Rows::Whole)).collect();
            let made = g.push_all(ends[d].clone(), &x).unwrap();
            made.iter().enumerate().for_each(|(i, y)| g.output(&format!("y{i}"), *y));
            g
        })
        .collect();
    let mut got = run_devices(&graphs, operands.to_vec()).unwrap().into_iter();
    [got.next().unwrap(), got.next().unwrap()]
}

fn check(ends: &Ends, uses: &[Both], slow: Slow) {
    let got = run(ends, uses, slow);
    for (i, (got, operands)) in got.iter().zip(uses).enumerate() {
        assert_eq!(*got, want(ends, operands), "use {i} of {} and {}", ends[0], ends[1]);
    }
}

/// Numbers that differ from use to use and from device to device.
fn fill(ty: &Type, seed: usize) -> Tensor {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let elements: Vec<Scalar> = (0..ty.shape.elements())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let x = ((state >> 40) as f64) / f64::from(1 << 20) - 8.0;
            Scalar::from_f64(ty.dtype, x)
        })
        .collect();
    Tensor::from_scalars(ty.clone(), &elements)
}

fn both(dtype: DType, shapes: [&[usize]; 2], uses: usize) -> Vec<Both> {
    (0..uses).map(|i| [0, 1].map(|d| vec![fill(&Type::new(dtype, shapes[d].to_vec()), 2 * i + d)])).collect()
}

fn reduce(function: Reduce) -> Ends {
    [0, 1].map(|device| ops::AllReduce { channel: 0, function, device, devices: 2 }.into())
}

fn gather(dim: usize, sizes: [usize; 2]) -> Ends {
    [0, 1].map(|device| ops::AllGather { channel: 0, dim, sizes: sizes.to_vec(), device }.into())
}

fn scatter(function: Reduce, dim: usize, sizes: [usize; 2]) -> Ends {
    [0, 1].map(|device| ops::ReduceScatter { channel: 0, function, dim, sizes: sizes.to_vec(), device }.into())
}

fn turn(from: usize, from_sizes: [usize; 2], to: usize, to_sizes: [usize; 2]) -> Ends {
    let (from_sizes, to_sizes) = (from_sizes.to_vec(), to_sizes.to_vec());
    let (f, t) = (&from_sizes, &to_sizes);
    [0, 1]
        .map(|device| ops::AllToAll { channel: 0, from, from_sizes: f.clone(), to, to_sizes: t.clone(), device }.into())
}

fn pass(ty: &Type, from: usize) -> Ends {
    let send = Op::from(ops::Send { channel: 0, to: 1 - from });
    let recv = Op::from(ops::Recv { channel: 0, from, ty: ty.clone() });
    if from == 0 { [send, recv] } else { [recv, send] }
}

fn passed(ty: &Type, from: usize, uses: usize) -> Vec<Both> {
    (0..uses).map(|i| [0, 1].map(|d| if d == from { vec![fill(ty, i)] } else { vec![] })).collect()
}

const DTYPES: [DType; 5] = [DType::F32, DType::BF16, DType::I64, DType::I8, DType::Bool];

#[test]
fn values_pass() {
    for (i, dtype) in DTYPES.into_iter().enumerate() {
        for shape in [vec![], vec![1], vec![3, 5], vec![7, 33], vec![64, 16], vec![0, 3]] {
            let ty = Type::new(dtype, shape);
            check(&pass(&ty, i % 2), &passed(&ty, i % 2, 3), Slow::Neither);
        }
    }
}

#[test]
fn values_are_combined() {
    for &function in Reduce::ALL {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::I32, DType::F64] {
            for shape in [vec![], vec![5, 3], vec![33, 8], vec![0]] {
                check(&reduce(function), &both(dtype, [&shape, &shape], 2), Slow::Neither);
            }
        }
    }
}

#[test]
fn parts_are_gathered() {
    for dtype in DTYPES {
        for sizes in [[3, 2], [0, 5], [5, 0], [4, 4]] {
            for dim in [0, 1, 2] {
                let shapes = sizes.map(|s| {
                    let mut shape = vec![3, 4, 2];
                    shape[dim] = s;
                    shape
                });
                check(&gather(dim, sizes), &both(dtype, [&shapes[0], &shapes[1]], 2), Slow::Neither);
            }
        }
    }
}

#[test]
fn combinations_are_divided() {
    for sizes in [[3, 2], [0, 5], [5, 0], [8, 4]] {
        let whole = sizes[0] + sizes[1];
        for (dim, shape) in [(0, [whole, 4]), (1, [3, whole])] {
            for dtype in [DType::F32, DType::F16, DType::I64] {
                check(&scatter(Reduce::Sum, dim, sizes), &both(dtype, [&shape, &shape], 2), Slow::Neither);
                check(&scatter(Reduce::Max, dim, sizes), &both(dtype, [&shape, &shape], 1), Slow::Neither);
            }
        }
    }
}

#[test]
fn parts_are_turned() {
    for from in [[3, 2], [0, 5], [5, 0], [4, 8]] {
        for to in [[3, 2], [0, 5], [5, 0], [8, 4]] {
            let (rows, columns) = (from[0] + from[1], to[0] + to[1]);
            for dtype in [DType::F32, DType::BF16, DType::Bool] {
                let ends = turn(0, from, 2, to);
                check(&ends, &both(dtype, [&[from[0], 2, columns], &[from[1], 2, columns]], 2), Slow::Neither);
                let back = turn(2, from, 0, to);
                check(&back, &both(dtype, [&[columns, 2, from[0]], &[columns, 2, from[1]]], 1), Slow::Neither);
                assert!(rows > 0);
            }
        }
    }
}

/// Five uses of all slots and all blocks, with one device behind: what is in a slot is not overwritten.
#[test]
fn uses_follow_each_other() {
    for slow in [Slow::Device(0), Slow::Device(1), Slow::Neither] {
        let shape = [67, 1033];
        check(&reduce(Reduce::Sum), &both(DType::F32, [&shape, &shape], 5), slow);
        let ty = Type::new(DType::F32, shape);
        check(&pass(&ty, 0), &passed(&ty, 0, 5), slow);
        check(&turn(0, [40, 27], 1, [1000, 33]), &both(DType::F32, [&[40, 1033], &[27, 1033]], 5), slow);
    }
}

/// NaN on one device, infinities on both, zeros of both signs.
#[test]
fn both_devices_get_the_same_bits() {
    let x = Tensor::from_f32([5], &[f32::NAN, f32::INFINITY, -0.0, 0.0, 1.0]);
    let y = Tensor::from_f32([5], &[1.0, f32::NEG_INFINITY, 0.0, -0.0, f32::NAN]);
    for &function in Reduce::ALL {
        let got = run(&reduce(function), &[[vec![x.clone()], vec![y.clone()]]], Slow::Neither);
        assert_eq!(got[0][0][0].data, got[0][1][0].data, "{function:?}");
    }
}

#[test]
fn nothing_is_launched_for_nothing() {
    let nothing = Type::new(DType::F32, [0, 4]);
    let none = exchanges(&pass(&nothing, 0), &passed(&nothing, 0, 1)[0]);
    assert!(none.iter().all(Option::is_none));
    // Device 1 has everything already: only device 0 waits for something.
    let [a, b] = exchanges(&gather(0, [0, 5]), &both(DType::F32, [&[0], &[5]], 1)[0]);
    let (a, b) = (a.unwrap(), b.unwrap());
    assert!(!a.args.contains(&ExchangeArgument::Operand(0)));
    assert!(b.args.contains(&ExchangeArgument::Result(0)));
    assert_eq!((a.mailbox, a.peer_mailbox), (FLAG_BYTES + 2 * 64, FLAG_BYTES));
}

/// What moves moves in 16 bytes, whatever the elements are, and so do combined elements; only the epoch is single.
#[test]
fn accesses_are_wide() {
    let shape = [64, 32];
    for dtype in [DType::F32, DType::BF16, DType::I8, DType::F64] {
        for ends in [gather(1, [32, 32]), turn(0, [64, 64], 1, [16, 16]), reduce(Reduce::Sum)] {
            if dtype == DType::I8 && matches!(ends[0], Op::AllReduce(_)) {
                // Bytes are combined four at a time: there are no wider vectors of them.
                continue;
            }
            for e in exchanges(&ends, &both(dtype, [&shape, &shape], 1)[0]).into_iter().flatten() {
                let text = ptx::module(&[&e.kernel]).unwrap();
                let wide =
                    |l: &&str| l.contains(".v4.") && l.contains("32 ") || l.contains(".v2.") && l.contains("64 ");
                let accesses = |what: &str| text.lines().filter(|l| l.contains(what)).collect::<Vec<_>>();
                assert!(accesses("ld.global.nc").iter().all(wide), "{text}");
                for what in ["ld.global.", "st.global."] {
                    let narrow = accesses(what).iter().filter(|l| !wide(l)).count();
                    assert_eq!(narrow, 1, "{dtype}: {what} other than of the epoch in {text}");
                }
            }
        }
    }
}

/// Operands of several types and sizes, whole and divided, some of them empty, share a message.
#[test]
fn operands_share_a_message() {
    let part = |dim, sizes: [usize; 2]| ops::Kept::Part { dim, sizes: sizes.to_vec() };
    let all = || ops::Kept::All;
    let members: [(DType, &[usize], ops::Kept); 7] = [
        (DType::F32, &[5], all()),
        (DType::BF16, &[3, 7], all()),
        (DType::F32, &[6, 4], part(0, [4, 2])),
        (DType::F32, &[0, 4], all()),
        (DType::F16, &[3, 5], part(1, [0, 5])),
        (DType::F32, &[67, 133], all()),
        (DType::F64, &[], all()),
    ];
    for function in [Reduce::Sum, Reduce::Max] {
        let kept: Vec<ops::Kept> = members.iter().map(|m| m.2.clone()).collect();
        let end = |device| ops::Bucket { channel: 0, function, kept: kept.clone(), device, devices: 2 }.into();
        let ends: Ends = [end(0), end(1)];
        let operand = |seed: usize, m: &(DType, &[usize], ops::Kept)| fill(&Type::new(m.0, m.1.to_vec()), seed);
        let operands = |seed: usize| members.iter().enumerate().map(|(i, m)| operand(seed + 10 * i, m)).collect();
        let uses: Vec<Both> = (0..3).map(|i| [operands(2 * i), operands(2 * i + 1)]).collect();
        for slow in [Slow::Neither, Slow::Device(0), Slow::Device(1)] {
            check(&ends, &uses, slow);
        }
        let [a, _] = exchanges(&ends, &uses[0]).map(Option::unwrap);
        // Each part is aligned: 64 + 64 + 64 (four rows of four) + 0 + 0 + 35 648 (67·133·4) + 64.
        assert_eq!(a.mailbox, FLAG_BYTES + 2 * (64 + 64 + 64 + 35_648 + 64));
        assert!(ptx::module(&[&a.kernel]).unwrap().len() > 1000);
    }
}

/// What came of a changed text.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The emulator stopped a kernel, or found bytes that nobody wrote.
    Flagged(String),
    WrongValues,
    Unnoticed,
}

/// Runs uses with a changed text on both devices, each device late once.
fn judge(ends: &Ends, uses: &[Both], change: &dyn Fn(usize, String) -> String) -> Verdict {
    let mut verdict = Verdict::Unnoticed;
    for slow in [Slow::Device(0), Slow::Device(1)] {
        let got = run_changed(ends, uses, slow, Duration::from_secs(1), change);
        // Where one device stops, the other may wait in vain.
        let stopped = got.iter().filter_map(|g| g.as_ref().err());
        if let Some(why) = stopped.min_by_key(|why| why.contains("deadlock")) {
            return Verdict::Flagged(why.clone());
        }
        let [a, b] = got.map(Result::unwrap);
        for ((a, b), operands) in a.into_iter().zip(b).zip(uses) {
            if [a, b] != want(ends, operands) {
                verdict = Verdict::WrongValues;
            }
        }
    }
    verdict
}

/// The text with the n-th occurrence of something replaced.
fn replace_nth(text: &str, from: &str, n: usize, to: &str) -> String {
    let at = text.match_indices(from).nth(n).unwrap_or_else(|| panic!("no {from} number {n} in {text}")).0;
    format!("{}{to}{}", &text[..at], &text[at + from.len()..])
}

/// The text without the n-th line that has something in it.
fn without(text: &str, what: &str, n: usize) -> String {
    let lost = text.lines().enumerate().filter(|(_, l)| l.contains(what)).nth(n).expect("a line with it").0;
    text.lines().enumerate().filter(|(i, _)| *i != lost).map(|(_, l)| format!("{l}\n")).collect()
}

/// The text with the parity of epochs dropped.
fn first_slot(text: &str) -> String {
    replace_nth(text, ", 1;\n\tcvt.u64", 0, ", 0;\n\tcvt.u64")
}

/// The text in which the first flag says the epoch after, which register %r2 has; %r3 is not used any more.
fn signal_next(text: &str) -> String {
    replace_nth(&replace_nth(text, "], %r2;", 0, "], %r3;"), "st.release", 0, "add.u32 %r3, %r2, 1;\n\tst.release")
}

/// Weakened scopes, wrong epochs, waits and barriers left out: the emulator stops, or values are wrong.
#[test]
fn mutants_are_caught() {
    const SENDER: usize = 0;
    const RECEIVER: usize = 1;
    /// Changes the text of both devices, by number.
    type Change = Box<dyn Fn(usize, String) -> String>;
    let on = |device: usize, f: fn(&str) -> String| -> Change {
        Box::new(move |d, text| if d == device { f(&text) } else { text })
    };
    let ty = Type::new(DType::F32, [70, 1024]);
    let (ends, uses) = (pass(&ty, SENDER), passed(&ty, SENDER, 5));
    assert_eq!(judge(&ends, &uses, &|_, text| text), Verdict::Unnoticed);
    let mutants: Vec<(&str, Change)> = vec![
        ("the scope of signals", Box::new(|_, text| text.replace("st.release.sys", "st.release.gpu"))),
        ("the scope of waits", Box::new(|_, text| text.replace("ld.acquire.sys", "ld.acquire.gpu"))),
        ("signals that release nothing", Box::new(|_, text| text.replace("st.release.sys", "st.relaxed.sys"))),
        ("signals like any store", Box::new(|_, text| text.replace("st.release.sys.global", "st.global"))),
        ("waits that acquire nothing", Box::new(|_, text| text.replace("ld.acquire.sys", "ld.relaxed.sys"))),
        ("sends into a slot that is not free", on(SENDER, |t| replace_nth(t, ", 2;\n", 0, ", 3;\n"))),
        ("does not wait for a free slot", on(SENDER, |t| without(t, "bra $wait", 0))),
        ("does not wait for the message", on(RECEIVER, |t| without(t, "bra $wait", 0))),
        ("only some threads wait for a free slot", on(SENDER, |t| without(t, "bar.sync", 0))),
        ("only some threads wait for the message", on(RECEIVER, |t| without(t, "bar.sync", 0))),
        ("counts epochs down", on(RECEIVER, |t| replace_nth(t, "add.u32", 0, "sub.u32"))),
        ("counts by two", on(SENDER, |t| replace_nth(t, "%r1, 1;", 0, "%r1, 2;"))),
        ("waits for the epoch before", on(RECEIVER, |t| replace_nth(t, ", 0;\n\tadd.u32", 0, ", -1;\n\tadd.u32"))),
        ("sends the epoch before", on(SENDER, |t| replace_nth(t, "], %r2;", 0, "], %r1;"))),
        ("frees the next slot too", on(RECEIVER, signal_next)),
        ("does not advance when it sends", on(SENDER, |t| without(t, "st.global.u32", 0))),
        ("does not advance when it receives", on(RECEIVER, |t| without(t, "st.global.u32", 0))),
        ("receives from the first slot always", on(RECEIVER, first_slot)),
        ("sends into the first slot always", on(SENDER, first_slot)),
        ("both use the first slot always", Box::new(|_, text| first_slot(&text))),
        ("forgets the message", on(SENDER, |t| without(t, "st.release", 0))),
        ("forgets to free the slot", on(RECEIVER, |t| without(t, "st.release", 0))),
    ];
    for (name, change) in mutants {
        assert_ne!(judge(&ends, &uses, &change), Verdict::Unnoticed, "{name}");
    }
}
