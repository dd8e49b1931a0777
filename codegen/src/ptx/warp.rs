//! What threads do together: shuffles, matrix products, flags between devices.

use super::EmitError;
use super::address::Address;
use super::emit::Emitter;
use super::text::{Agreement, Class, Value, When, int};
use intwain_ir::DType;
use intwain_ir::kernel::{Entry, MatrixForm, MmaShape, Place, Reg, Shuffle};
use smallvec::SmallVec;

fn list(values: &[Value]) -> String {
    format!("{{{}}}", values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

/// Looks at a flag before a kernel gives up. A look takes about a microsecond where the flag is in the device's own memory:
/// some minutes in all, longer than any peer computes.
const PATIENCE: i32 = 1 << 28;

impl Emitter<'_> {
    /// The value of another lane of the warp.
    pub(super) fn shuffle(&mut self, how: Shuffle, x: Value) -> Value {
        if let Value::Literal(..) = x {
            return x;
        }
        match x.class() {
            Class::Int | Class::Float => self.shuffle_word(how, x),
            Class::Pred => {
                let word = self.number(x);
                let word = self.shuffle_word(how, word);
                self.t.op(Class::Pred, "setp.ne.s32", &[word, int(0)])
            }
            Class::Half => {
                let word = self.t.op(Class::Int, "cvt.u32.u16", &[x]);
                let word = self.shuffle_word(how, word);
                self.t.op(Class::Half, "cvt.u16.u32", &[word])
            }
            class @ (Class::Long | Class::Double) => {
                let (lo, hi) = (self.t.fresh(Class::Int), self.t.fresh(Class::Int));
                self.t.pure(&[lo, hi], &[x], format_args!("mov.b64 {{{lo}, {hi}}}, {x};"));
                let (lo, hi) = (self.shuffle_word(how, lo), self.shuffle_word(how, hi));
                let d = self.t.fresh(class);
                self.t.pure(&[d], &[lo, hi], format_args!("mov.b64 {d}, {{{lo}, {hi}}};"));
                d
            }
        }
    }

    fn shuffle_word(&mut self, how: Shuffle, x: Value) -> Value {
        let (mode, n) = match how {
            Shuffle::Butterfly(n) => ("bfly", n),
            Shuffle::Down(n) => ("down", n),
            Shuffle::From(n) => ("idx", n),
        };
        let threads: u64 = match self.kernel.entry {
            Entry::Grid { threads, .. } => threads.iter().map(|&n| u64::from(n)).product(),
            Entry::Tasks | Entry::Tile => 32,
        };
        let members = if threads < 32 { (1u32 << threads) - 1 } else { u32::MAX };
        let d = self.t.fresh(x.class());
        self.t.pure(&[d], &[x], format_args!("shfl.sync.{mode}.b32 {d}, {x}, {n}, 31, {members:#x};"));
        d
    }

    /// `ldmatrix`.
    pub(super) fn load_matrix(&mut self, d: &[Reg], address: Address, form: MatrixForm) {
        let fragments: Vec<Value> = d.iter().map(|_| self.t.fresh(Class::Int)).collect();
        let trans = match form {
            MatrixForm::Rows => "",
            MatrixForm::Columns => ".trans",
        };
        let n = d.len();
        let all = list(&fragments);
        let line = format!("ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {all}, {address};");
        self.t.pure(&fragments, &address.uses(), format_args!("{line}"));
        for (r, v) in d.iter().zip(fragments) {
            self.define(*r, SmallVec::from_elem(v, 1));
        }
    }

    /// `mma.sync`.
    pub(super) fn mma(
        &mut self,
        shape: &MmaShape,
        d: &[Reg],
        a: &[Reg],
        b: &[Reg],
        c: &[Reg],
    ) -> Result<(), EmitError> {
        let MmaShape { m, n, k, operand, accumulator } = *shape;
        let (of, sum) = match (m, n, k, operand, accumulator) {
            (16, 8, 8 | 16, DType::F16, DType::F32) => ("f16", "f32"),
            (16, 8, 8 | 16, DType::F16, DType::F16) => ("f16", "f16"),
            (16, 8, 8 | 16, DType::BF16, DType::F32) => ("bf16", "f32"),
            (16, 8, 4 | 8, DType::F32, DType::F32) => ("tf32", "f32"),
            _ => {
                return Err(self.unsupported(format!("a product {m} x {n} x {k} of {operand} in {accumulator}")));
            }
        };
        let [a, b, c] = [a, b, c].map(|rs| self.in_regs(rs));
        // Accumulators of 16 bits go two to a register.
        let c = if sum == "f16" { self.packed(&c) } else { c };
        let out: Vec<Value> = c.iter().map(|v| self.t.fresh(v.class())).collect();
        let (dl, al, bl, cl) = (list(&out), list(&a), list(&b), list(&c));
        let types = format!("{sum}.{of}.{of}.{sum}");
        let line = format!("mma.sync.aligned.m{m}n{n}k{k}.row.col.{types} {dl}, {al}, {bl}, {cl};");
        self.t.pure(&out, &[a, b, c].concat(), format_args!("{line}"));
        let out = if sum == "f16" { self.unpacked(&out) } else { out };
        for (r, v) in d.iter().zip(out) {
            self.define(*r, SmallVec::from_elem(v, 1));
        }
        Ok(())
    }

    fn in_regs(&mut self, rs: &[Reg]) -> Vec<Value> {
        rs.iter()
            .map(|r| {
                let v = self.value(*r);
                self.t.in_reg(v)
            })
            .collect()
    }

    fn packed(&mut self, halves: &[Value]) -> Vec<Value> {
        halves
            .chunks(2)
            .map(|pair| {
                let d = self.t.fresh(Class::Int);
                self.t.pure(&[d], pair, format_args!("mov.b32 {d}, {};", list(pair)));
                d
            })
            .collect()
    }

    fn unpacked(&mut self, words: &[Value]) -> Vec<Value> {
        words
            .iter()
            .flat_map(|w| {
                let pair = [self.t.fresh(Class::Half), self.t.fresh(Class::Half)];
                self.t.pure(&pair, &[*w], format_args!("mov.b32 {}, {w};", list(&pair)));
                pair
            })
            .collect()
    }

    /// Says to the other device that everything so far is done.
    pub(super) fn signal(&mut self, to: Place, index: Reg, value: Reg) {
        let address = self.address(to, index, 0);
        let v = self.value(value);
        let v = self.t.in_reg(v);
        self.t.line(&address.with(&[v]), format_args!("st.release.sys.global.u32 {address}, {v};"));
    }

    /// Waits until a flag has reached a value, as numbers that wrap; traps when it never seems to, so that a device whose
    /// peer has failed ends too.
    pub(super) fn wait_for(&mut self, from: Place, index: Reg, value: Reg) {
        let address = self.address(from, index, 0);
        let wanted = self.value(value);
        let again = self.t.label("wait");
        let (seen, looks) = (self.t.fresh(Class::Int), self.t.fresh(Class::Int));
        self.t.line(&[], format_args!("mov.u32 {looks}, 0;"));
        self.t.mark(&again);
        self.t.line(&address.uses(), format_args!("ld.acquire.sys.global.u32 {seen}, {address};"));
        let ahead = self.t.op(Class::Int, "sub.s32", &[seen, wanted]);
        let early = self.t.op(Class::Pred, "setp.lt.s32", &[ahead, int(0)]);
        self.t.line(&[looks], format_args!("add.u32 {looks}, {looks}, 1;"));
        let tired = self.t.op(Class::Pred, "setp.gt.and.u32", &[looks, int(PATIENCE), early]);
        self.t.line(&[tired], format_args!("@{tired} trap;"));
        self.t.jump_if(early, When::True, Agreement::Divergent, &again);
    }
}
