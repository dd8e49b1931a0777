//! Sound: spectrograms, as convolutions with the waves of a discrete Fourier transform.

use std::f64::consts::PI;

use intwain_ir::ops::{Concat, Contract, Conv, Iota, Pad, Reverse};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Scalar, Shape, Trainable, Value};

use super::build::Builder;
use super::cx::{Cx, Out, misfit};
use super::inputs::Inputs;
use super::tables;
use super::windows::{Format, Padding, Windows};
use crate::frontend::cursor::{At, Fields};
use crate::frontend::init::Initializer;

/// Keras's smallest number that is told from 0.
const EPSILON: f64 = 1e-7;

/// Sums of cosines that SciPy has names for.
const WINDOWS: [(&str, &[f64]); 8] = [
    ("hann", &[0.5, 0.5]),
    ("hamming", &[0.54, 0.46]),
    ("blackman", &[0.42, 0.5, 0.08]),
    ("nuttall", &[0.363_581_9, 0.489_177_5, 0.136_599_5, 0.010_641_1]),
    ("blackmanharris", &[0.358_75, 0.488_29, 0.141_28, 0.011_68]),
    ("flattop", &[0.215_578_95, 0.416_631_58, 0.277_263_158, 0.083_578_947, 0.006_947_368]),
    ("boxcar", &[1.0]),
    ("ones", &[1.0]),
];

/// Σ aₖ·cos(k·θ) at `n` places of a turn of `period`, from −π on.
fn cosines(coefficients: &[f64], n: usize, period: usize) -> Vec<f64> {
    if n == 1 {
        return vec![1.0];
    }
    let angle = |i: usize| 2.0 * PI * i as f64 / period as f64 - PI;
    let sum = |i: usize| coefficients.iter().enumerate().map(|(k, a)| a * (k as f64 * angle(i)).cos()).sum();
    (0..n).map(sum).collect()
}

/// The window of `n` samples that a configuration names or lists.
fn window(at: &At<'_>, n: usize, period: usize) -> Out<Vec<f64>> {
    if at.json.as_str().is_some() {
        let name = at.str()?;
        let named = WINDOWS.iter().find(|(known, _)| *known == name);
        let Some((_, coefficients)) = named else { return Err(at.accepted(&WINDOWS.map(|(name, _)| name)).into()) };
        return Ok(cosines(coefficients, n, period));
    }
    let given = at.array()?.iter().map(At::f64).collect::<Result<Vec<_>, _>>()?;
    match given.len() == n {
        true => Ok(given),
        false => Err(misfit(format!("a window of {} numbers for frames of {n}", given.len()))),
    }
}

/// The part of a spectrum that a kernel finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Real,
    Imaginary,
}

/// What frames of a signal are multiplied with.
struct Waves {
    frame: usize,
    fft: usize,
    window: Option<Vec<f64>>,
    scaling: f64,
}

impl Waves {
    fn read(fields: &Fields<'_>) -> Out<Waves> {
        let frame = fields.positive_or("frame_length", 256)?;
        let fft = fields.opt("fft_length").map_or(Ok(frame.next_power_of_two()), |at| at.positive())?;
        if fft < frame {
            return Err(misfit(format!("a transform of {fft} samples for frames of {frame}")));
        }
        let periodic = fields.bool_or("periodic", false)?;
        let period = if periodic { frame } else { (frame - 1).max(1) };
        let window = match fields.get("window") {
            Some(at) if at.is_null() => None,
            Some(at) => Some(window(&at, frame, period)?),
            None => Some(cosines(WINDOWS[0].1, frame, period)),
        };
        let density = match fields.get("scaling") {
            Some(at) if at.is_null() => None,
            _ => Some(fields.choice("scaling", &["density", "spectrum"])? == 0),
        };
        let scaling = match (&window, density) {
            (Some(w), Some(true)) => w.iter().map(|x| x * x).sum::<f64>().sqrt(),
            (Some(w), Some(false)) => w.iter().map(|x| x.abs()).sum(),
            (Some(_) | None, _) => 1.0,
        };
        Ok(Waves { frame, fft, window, scaling })
    }

    fn bins(&self) -> usize {
        self.fft / 2 + 1
    }

    /// The kernel of a fresh model: `[frame, 1, bins]`.
    fn initializer(&self, side: Side) -> Initializer {
        // Keras takes the length of the transform from the bins, so that it is even.
        let length = 2 * (self.bins() - 1).max(1);
        let mut values = Vec::with_capacity(self.frame * self.bins());
        for t in 0..self.frame {
            let share = self.window.as_ref().map_or(1.0, |w| w[t] / self.scaling);
            for k in 0..self.bins() {
                let angle = -2.0 * PI * ((t * k) % length) as f64 / length as f64;
                let wave = if side == Side::Real { angle.cos() } else { angle.sin() };
                values.push(wave * share);
            }
        }
        Initializer::Values(values)
    }
}

/// What a spectrogram shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Log,
    Magnitude,
    Psd,
    Real,
    Imaginary,
    Angle,
    Both,
}

const MODES: [(&str, Mode); 7] = [
    ("log", Mode::Log),
    ("magnitude", Mode::Magnitude),
    ("psd", Mode::Psd),
    ("real", Mode::Real),
    ("imag", Mode::Imaginary),
    ("angle", Mode::Angle),
    ("stft", Mode::Both),
];

/// A short-time Fourier transform of every channel, with kernels that can be trained.
pub(super) fn stft_spectrogram(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let mode = MODES[fields.choice("mode", &MODES.map(|(name, _)| name))?].1;
    let waves = Waves::read(fields)?;
    let step = fields.opt("frame_step").map_or(Ok((waves.frame / 2).max(1)), |at| at.positive())?;
    let windows =
        Windows { size: vec![waves.frame], stride: vec![step], dilation: vec![1], padding: Padding::read(fields)? };
    let expand = fields.bool_or("expand_dims", false)?;
    let format = Format::read(fields)?;
    let x = inputs.one()?.value;
    let cx = &mut b.cx;
    let x = cx.floating(x)?;
    let x = if cx.rank(x) == 3 { format.to_last(cx, x)? } else { x };
    let &[n, steps, channels] = cx.dims(x).as_slice() else {
        return Err(misfit(format!("takes a tensor of rank 3, its input has the shape {:?}", cx.dims(x))));
    };
    let kernel = |cx: &mut Cx, name: &str, side: Side| -> Out<Value> {
        let shape = [waves.frame, 1, waves.bins()];
        let kernel = cx.var(name, &shape, waves.initializer(side), Trainable::Yes)?;
        Ok(cx.g.reshape(kernel, &Shape::from([waves.frame, 1, 1, waves.bins()]))?)
    };
    let real = if mode == Mode::Imaginary { None } else { Some(kernel(cx, "real_kernel", Side::Real)?) };
    let imaginary = if mode == Mode::Real { None } else { Some(kernel(cx, "imag_kernel", Side::Imaginary)?) };
    // Channels are a second spatial dimension that the kernels do not reach over.
    let x = cx.g.reshape(x, &Shape::from([n, steps, channels, 1]))?;
    let pads = windows.pads(&[steps])?[0];
    let op = Conv {
        stride: vec![step, 1],
        pads: vec![pads, (0, 0)],
        input_dilation: vec![1; 2],
        kernel_dilation: vec![1; 2],
        groups: 1,
        batch_groups: 1,
    };
    let mut part = |kernel: Option<Value>| kernel.map(|k| cx.g.push(op.clone(), &[x, k])).transpose();
    let (real, imaginary) = (part(real)?, part(imaginary)?);
    let y = match (real, imaginary) {
        (Some(only), None) | (None, Some(only)) => only,
        (Some(real), Some(imaginary)) => shown(cx, mode, real, imaginary)?,
        (None, None) => return Err(misfit("has neither a real nor an imaginary part")),
    };
    Ok(vec![arranged(cx, y, format, expand)?.into()])
}

/// What a mode shows of a spectrum `[N, frames, channels, bins]`.
fn shown(cx: &mut Cx, mode: Mode, real: Value, imaginary: Value) -> Out<Value> {
    match mode {
        Mode::Angle => return Ok(cx.g.binary(Binary::Atan2, imaginary, real)?),
        Mode::Both => return Ok(cx.g.push(Concat { dim: 3 }, &[real, imaginary])?),
        Mode::Log | Mode::Magnitude | Mode::Psd | Mode::Real | Mode::Imaginary => {}
    }
    let power = power(cx, real, imaginary)?;
    if mode == Mode::Psd {
        // All bins but the first and the last stand for their mirror images too.
        let last = cx.dims(power)[3] - 1;
        if last < 2 {
            return Ok(power);
        }
        let inner = cx.g.slice_dim(power, 3, 1..last)?;
        let edges = vec![0, 0, 0, 1];
        let value = vec![Scalar::zero(cx.g.ty(power).dtype)];
        let mirrored = cx.g.push(Pad { low: edges.clone(), high: edges, interior: vec![0; 4], value }, &[inner])?;
        return Ok(cx.g.add(power, mirrored)?);
    }
    let ty = cx.g.ty(power).clone();
    let least = cx.g.full(ty.dtype, EPSILON, &ty.shape)?;
    let power = cx.g.binary(Binary::Max, power, least)?;
    let magnitude = cx.g.unary(Unary::Sqrt, power)?;
    if mode == Mode::Magnitude {
        return Ok(magnitude);
    }
    let limited = cx.g.binary(Binary::Max, magnitude, least)?;
    Ok(cx.g.unary(Unary::Log, limited)?)
}

fn power(cx: &mut Cx, real: Value, imaginary: Value) -> Out<Value> {
    let (a, b) = (cx.g.mul(real, real)?, cx.g.mul(imaginary, imaginary)?);
    Ok(cx.g.add(a, b)?)
}

/// `[N, frames, channels, bins]` as Keras arranges it.
fn arranged(cx: &mut Cx, y: Value, format: Format, expand: bool) -> Out<Value> {
    let dims = cx.dims(y);
    let (n, frames, channels, bins) = (dims[0], dims[1], dims[2], dims[3]);
    Ok(match (format, expand) {
        (Format::Last, true) => cx.g.transpose(y, &[0, 1, 3, 2])?,
        (Format::Last, false) => cx.g.reshape(y, &Shape::from([n, frames, channels * bins]))?,
        (Format::First, true) => cx.g.transpose(y, &[0, 2, 1, 3])?,
        (Format::First, false) => {
            let y = cx.g.transpose(y, &[0, 2, 3, 1])?;
            cx.g.reshape(y, &Shape::from([n, channels * bins, frames]))?
        }
    })
}

/// A spectrogram of bands as the ear tells them apart.
pub(super) fn mel_spectrogram(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let fft = fields.positive_or("fft_length", 2048)?;
    let step = fields.positive_or("sequence_stride", 512)?;
    let frame = fields.positive_or("sequence_length", fft)?;
    if fft < frame {
        return Err(misfit(format!("a transform of {fft} samples for frames of {frame}")));
    }
    let rate = fields.f64_or("sampling_rate", 16000.0)?;
    let bands = fields.positive_or("num_mel_bins", 128)?;
    let low = fields.f64_or("min_freq", 20.0)?;
    let high = fields.opt("max_freq").map(|at| at.f64()).transpose()?.filter(|f| *f != 0.0);
    let high = high.unwrap_or((rate / 2.0).floor());
    let exponent = fields.f64_or("mag_exp", 2.0)?;
    let decibels = Decibels::read(fields)?;
    // TensorFlow's windows of odd length end where they begin, whatever is asked for.
    let period = if frame.is_multiple_of(2) { frame } else { (frame - 1).max(1) };
    let window = match fields.get("window") {
        Some(at) if at.is_null() => vec![1.0; frame],
        Some(at) if at.json.as_str().is_some() && !matches!(at.str()?, "hann" | "hamming") => {
            return Err(at.accepted(&["hann", "hamming"]).into());
        }
        Some(at) => window(&at, frame, period)?,
        None => cosines(WINDOWS[0].1, frame, period),
    };
    let before = (fft - frame) / 2;
    let mut padded = vec![0.0; fft];
    padded[before..before + frame].copy_from_slice(&window);

    let x = inputs.one()?.value;
    let cx = &mut b.cx;
    let outer = cx.dtype;
    let dtype = if outer == DType::F64 { DType::F64 } else { DType::F32 };
    let x = cx.g.cast(dtype, x)?;
    let dims = cx.dims(x);
    let Some((&samples, rows)) = dims.split_last() else { return Err(misfit("takes a signal, not a number")) };
    let n: usize = rows.iter().product();
    let flat = cx.g.reshape(x, &Shape::from([n, samples]))?;
    let flat = reflected(cx, flat, fft / 2)?;
    let length = cx.dims(flat)[1];
    let signal = cx.g.reshape(flat, &Shape::from([n, length, 1]))?;
    let spectrum = spectrum(cx, signal, &padded, step)?;
    let bins = fft / 2 + 1;
    let (real, imaginary) = (cx.g.slice_dim(spectrum, 2, 0..bins)?, cx.g.slice_dim(spectrum, 2, bins..2 * bins)?);
    let power = power(cx, real, imaginary)?;
    let magnitude = raised(cx, power, exponent / 2.0)?;
    let matrix = mel_matrix(cx, dtype, bins, bands, rate, (low, high))?;
    let mut y = cx.g.push(Contract { batch: vec![], contract: vec![(2, 0)] }, &[magnitude, matrix])?;
    if let Some(decibels) = decibels {
        y = decibels.apply(cx, y)?;
    }
    let y = cx.g.transpose(y, &[0, 2, 1])?;
    let frames = cx.dims(y)[2];
    let shape: Vec<usize> = rows.iter().copied().chain([bands, frames]).collect();
    let y = cx.g.reshape(y, &Shape::from(shape))?;
    Ok(vec![cx.g.cast(outer, y)?.into()])
}

/// A signal continued on both sides by its mirror image, the samples at the ends once.
fn reflected(cx: &mut Cx, x: Value, by: usize) -> Out<Value> {
    let samples = cx.dims(x)[1];
    if samples <= by {
        return Err(misfit(format!(
            "a signal of {samples} samples, which does not reach over half a transform of {by}"
        )));
    }
    if by == 0 {
        return Ok(x);
    }
    let before = cx.g.slice_dim(x, 1, 1..by + 1)?;
    let behind = cx.g.slice_dim(x, 1, samples - 1 - by..samples - 1)?;
    let before = cx.g.push(Reverse { dims: vec![1] }, &[before])?;
    let behind = cx.g.push(Reverse { dims: vec![1] }, &[behind])?;
    Ok(cx.g.push(Concat { dim: 1 }, &[before, x, behind])?)
}

/// Real and, behind them, imaginary parts of every frame of a signal `[N, samples, 1]` under a window: `[N, frames, 2·bins]`.
fn spectrum(cx: &mut Cx, signal: Value, window: &[f64], step: usize) -> Out<Value> {
    let fft = window.len();
    let bins = fft / 2 + 1;
    let shape = Shape::from([fft, 1, 2 * bins]);
    let dtype = cx.g.ty(signal).dtype;
    let whole = |cx: &mut Cx, n: usize| cx.g.full(DType::I64, n as f64, &shape);
    let time = cx.g.push(Iota { dtype: DType::I64, shape: shape.clone(), dim: 0, start: 0 }, &[])?;
    let column = cx.g.push(Iota { dtype: DType::I64, shape: shape.clone(), dim: 2, start: 0 }, &[])?;
    let (count, length, quarter) = (whole(cx, bins)?, whole(cx, fft)?, cx.g.full(dtype, PI / 2.0, &shape)?);
    let frequency = cx.g.binary(Binary::Mod, column, count)?;
    // The angle is reduced in integers, where nothing is lost.
    let turns = cx.g.mul(time, frequency)?;
    let turns = cx.g.binary(Binary::Mod, turns, length)?;
    let turns = cx.g.cast(dtype, turns)?;
    let unit = cx.g.full(dtype, 2.0 * PI / fft as f64, &shape)?;
    let angle = cx.g.mul(turns, unit)?;
    let imaginary = cx.g.compare(Compare::Ge, column, count)?;
    let zero = cx.g.full(dtype, 0.0, &shape)?;
    let shift = cx.g.select(imaginary, quarter, zero)?;
    // cos(α + π⁄2) = −sin α
    let angle = cx.g.add(angle, shift)?;
    let waves = cx.g.unary(Unary::Cos, angle)?;
    let window = tables::floats(cx, dtype, &[fft], window)?;
    let window = cx.g.broadcast(window, &shape, &[0])?;
    let kernel = cx.g.mul(waves, window)?;
    // Frames begin at multiples of what step and frame have in common: so many samples become the channels of one position.
    let dims = cx.dims(signal);
    let frames = (dims[1] - fft) / step + 1;
    let used = (frames - 1) * step + fft;
    let block = common(step, fft);
    let signal = cx.g.slice_dim(signal, 1, 0..used)?;
    let signal = cx.g.reshape(signal, &Shape::from([dims[0], used / block, block]))?;
    let kernel = cx.g.reshape(kernel, &Shape::from([fft / block, block, 2 * bins]))?;
    let op = Conv {
        stride: vec![step / block],
        pads: vec![(0, 0)],
        input_dilation: vec![1],
        kernel_dilation: vec![1],
        groups: 1,
        batch_groups: 1,
    };
    Ok(cx.g.push(op, &[signal, kernel])?)
}

/// The greatest common divisor.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common(b, a % b) }
}

fn raised(cx: &mut Cx, x: Value, exponent: f64) -> Out<Value> {
    if exponent == 1.0 {
        return Ok(x);
    }
    let root = cx.g.unary(Unary::Sqrt, x)?;
    if exponent == 0.5 {
        return Ok(root);
    }
    let ty = cx.g.ty(x).clone();
    let exponent = cx.g.full(ty.dtype, 2.0 * exponent, &ty.shape)?;
    Ok(cx.g.binary(Binary::Pow, root, exponent)?)
}

/// The share of every frequency bin in every band: triangles on the mel scale, which overlap by halves.
fn mel_matrix(cx: &mut Cx, dtype: DType, bins: usize, bands: usize, rate: f64, range: (f64, f64)) -> Out<Value> {
    let mel = |hertz: f64| 1127.0 * (1.0 + hertz / 700.0).ln();
    let frequency = |k: usize| rate / 2.0 * k as f64 / (bins - 1).max(1) as f64;
    let places: Vec<f64> = (0..bins).map(|k| mel(frequency(k))).collect();
    let (low, high) = (mel(range.0), mel(range.1));
    let edge = |i: usize| low + (high - low) * i as f64 / (bands + 1) as f64;
    let edges: Vec<f64> = (0..bands + 2).map(edge).collect();
    let shape = Shape::from([bins, bands]);
    let place = tables::floats(cx, dtype, &[bins], &places)?;
    let place = cx.g.broadcast(place, &shape, &[0])?;
    let mut along = |from: usize| -> Out<Value> {
        let v = tables::floats(cx, dtype, &[bands], &edges[from..from + bands])?;
        Ok(cx.g.broadcast(v, &shape, &[1])?)
    };
    let (lower, centre, upper) = (along(0)?, along(1)?, along(2)?);
    let (rise, width) = (cx.g.sub(place, lower)?, cx.g.sub(centre, lower)?);
    let rising = cx.g.div(rise, width)?;
    let (fall, width) = (cx.g.sub(upper, place)?, cx.g.sub(upper, centre)?);
    let falling = cx.g.div(fall, width)?;
    let share = cx.g.binary(Binary::Min, rising, falling)?;
    let zero = cx.g.full(dtype, 0.0, &shape)?;
    let share = cx.g.binary(Binary::Max, share, zero)?;
    // The constant part of a signal is in no band.
    let first = cx.g.push(Iota { dtype, shape: shape.clone(), dim: 0, start: 0 }, &[])?;
    let first = cx.g.compare(Compare::Eq, first, zero)?;
    Ok(cx.g.select(first, zero, share)?)
}

/// Powers on a logarithmic scale.
struct Decibels {
    least: f64,
    reference: f64,
    range: f64,
}

impl Decibels {
    fn read(fields: &Fields<'_>) -> Out<Option<Decibels>> {
        let least = fields.f64_or("min_power", 1e-10)?;
        let reference = fields.f64_or("ref_power", 1.0)?.abs();
        let range = fields.f64_or("top_db", 80.0)?;
        Ok(fields.bool_or("power_to_db", true)?.then_some(Decibels { least, reference, range }))
    }

    /// Relative to the reference, and at most so far below the loudest of all.
    fn apply(&self, cx: &mut Cx, x: Value) -> Out<Value> {
        let ty = cx.g.ty(x).clone();
        let mut num = |v: f64| cx.g.full(ty.dtype, v, &ty.shape);
        let offset = 10.0 * self.reference.max(self.least).log10();
        let (least, ten, offset) = (num(self.least)?, num(10.0 / std::f64::consts::LN_10)?, num(offset)?);
        let power = cx.g.binary(Binary::Max, x, least)?;
        let log = cx.g.unary(Unary::Log, power)?;
        let db = cx.g.mul(log, ten)?;
        let db = cx.g.sub(db, offset)?;
        let all: Vec<usize> = (0..ty.rank()).collect();
        let loudest = cx.g.reduce_keep(Reduce::Max, db, &all)?;
        let floor = cx.g.ty(loudest).clone();
        let range = cx.g.full(floor.dtype, self.range, &floor.shape)?;
        let floor = cx.g.sub(loudest, range)?;
        let floor = cx.g.broadcast_to(floor, &ty.shape)?;
        Ok(cx.g.binary(Binary::Max, db, floor)?)
    }
}
