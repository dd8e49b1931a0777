//! Values, registers and lines of PTX.

use intwain_ir::DType;
use intwain_ir::scalar::Scalar;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};

/// Classes of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Class {
    /// Predicates: bool.
    Pred,
    /// 16 bits: f16 and bf16.
    Half,
    /// 32-bit integers, and narrower ones widened.
    Int,
    /// 64-bit integers and global addresses.
    Long,
    /// f32.
    Float,
    /// f64.
    Double,
}

impl Class {
    const ALL: [Class; 6] = [Class::Pred, Class::Half, Class::Int, Class::Long, Class::Float, Class::Double];

    /// The class that holds elements of a type.
    pub(super) fn of(dtype: DType) -> Class {
        match dtype {
            DType::Bool => Class::Pred,
            DType::F16 | DType::BF16 => Class::Half,
            DType::I8 | DType::U8 | DType::I16 | DType::I32 | DType::U32 => Class::Int,
            DType::I64 => Class::Long,
            DType::F32 => Class::Float,
            DType::F64 => Class::Double,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Class::Pred => "%p",
            Class::Half => "%h",
            Class::Int => "%r",
            Class::Long => "%rd",
            Class::Float => "%f",
            Class::Double => "%fd",
        }
    }

    /// The type of the class, for declarations, moves and selections.
    pub(super) fn ty(self) -> &'static str {
        match self {
            Class::Pred => "pred",
            Class::Half => "b16",
            Class::Int => "b32",
            Class::Long => "b64",
            Class::Float => "f32",
            Class::Double => "f64",
        }
    }
}

/// A register or a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Value {
    /// A register.
    Reg(Class, u32),
    /// The bits of a literal; of integers as wide as their class, sign-extended where the type is signed.
    Literal(Class, u64),
}

impl Value {
    pub(super) fn class(self) -> Class {
        match self {
            Value::Reg(c, _) | Value::Literal(c, _) => c,
        }
    }

    /// The value of an integer literal, as signed.
    pub(super) fn known(self) -> Option<i64> {
        match self {
            Value::Literal(Class::Int, bits) => Some(i64::from(bits as u32 as i32)),
            Value::Literal(Class::Long, bits) => Some(bits as i64),
            Value::Literal(..) | Value::Reg(..) => None,
        }
    }
}

/// The literal of an element in the form that registers hold.
pub(super) fn literal(x: Scalar) -> Value {
    let class = Class::of(x.dtype());
    match class {
        Class::Int => int(x.to_i64() as i32),
        Class::Pred | Class::Half | Class::Long | Class::Float | Class::Double => Value::Literal(class, x.bits()),
    }
}

/// A literal of 32 bits.
pub(super) fn int(x: i32) -> Value {
    Value::Literal(Class::Int, u64::from(x as u32))
}

/// A literal of 64 bits.
pub(super) fn long(x: i64) -> Value {
    Value::Literal(Class::Long, x as u64)
}

/// A literal f32.
pub(super) fn float(x: f32) -> Value {
    Value::Literal(Class::Float, u64::from(x.to_bits()))
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Value::Reg(class, n) => write!(f, "{}{n}", class.prefix()),
            Value::Literal(class, bits) => match class {
                Class::Pred | Class::Half => write!(f, "{bits}"),
                Class::Int => write!(f, "{}", bits as u32 as i32),
                Class::Long if bits == 1 << 63 => write!(f, "{bits:#x}"),
                Class::Long => write!(f, "{}", bits as i64),
                Class::Float => write!(f, "0f{bits:08X}"),
                Class::Double => write!(f, "0d{bits:016X}"),
            },
        }
    }
}

/// A place that can be jumped to.
#[derive(Clone, Debug)]
pub(super) struct Label(String);

/// A line, with what it reads and writes.
#[derive(Debug)]
struct Line {
    text: String,
    defines: SmallVec<[Value; 4]>,
    uses: SmallVec<[Value; 4]>,
    needed: Needed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needed {
    /// It does something.
    Always,
    /// Only if something reads what it writes.
    ForResult,
}

/// Lines of a kernel's body.
#[derive(Debug, Default)]
pub(super) struct Text {
    lines: Vec<Line>,
    counts: [u32; Class::ALL.len()],
    labels: u32,
    targets: HashSet<String>,
    guard: Option<(Value, When)>,
}

impl Text {
    /// A register that nothing has used.
    pub(super) fn fresh(&mut self, class: Class) -> Value {
        let count = &mut self.counts[class as usize];
        *count += 1;
        Value::Reg(class, *count - 1)
    }

    /// Lines from here on are executed only where the predicate is so; nothing ends that. Gives what was before.
    pub(super) fn guard(&mut self, guard: Option<(Value, When)>) -> Option<(Value, When)> {
        std::mem::replace(&mut self.guard, guard)
    }

    /// Whether lines are guarded.
    pub(super) fn guarded(&self) -> bool {
        self.guard.is_some()
    }

    fn push(&mut self, text: &str, defines: &[Value], uses: &[Value], needed: Needed) {
        let mut uses = SmallVec::from_slice(uses);
        let text = match self.guard {
            None => format!("\t{text}\n"),
            Some((p, when)) => {
                uses.push(p);
                format!("\t@{}{p} {text}\n", when.sign())
            }
        };
        self.lines.push(Line { text, defines: defines.into(), uses, needed });
    }

    /// An instruction that has an effect, as it is, with the registers that it reads.
    pub(super) fn line(&mut self, uses: &[Value], line: fmt::Arguments<'_>) {
        self.push(&line.to_string(), &[], uses, Needed::Always);
    }

    /// An instruction that only writes registers, as it is, with those that it writes and reads.
    pub(super) fn pure(&mut self, defines: &[Value], uses: &[Value], line: fmt::Arguments<'_>) {
        self.push(&line.to_string(), defines, uses, Needed::ForResult);
    }

    /// An instruction with a result of the given class.
    pub(super) fn op(&mut self, class: Class, code: &str, args: &[Value]) -> Value {
        let d = self.fresh(class);
        self.to(d, code, args);
        d
    }

    /// An instruction that writes a given register.
    pub(super) fn to(&mut self, d: Value, code: &str, args: &[Value]) {
        let list: Vec<String> = args.iter().map(ToString::to_string).collect();
        self.pure(&[d], args, format_args!("{code} {d}, {};", list.join(", ")));
    }

    /// Copies a value to a register of its class.
    pub(super) fn copy(&mut self, d: Value, s: Value) {
        if d != s {
            self.to(d, &format!("mov.{}", d.class().ty()), &[s]);
        }
    }

    /// The value in a register.
    pub(super) fn in_reg(&mut self, x: Value) -> Value {
        match x {
            Value::Reg(..) => x,
            Value::Literal(class, _) => {
                let d = self.fresh(class);
                self.copy(d, x);
                d
            }
        }
    }

    /// A new label, not placed yet.
    pub(super) fn label(&mut self, stem: &str) -> Label {
        self.labels += 1;
        Label(format!("${stem}_{}", self.labels))
    }

    /// Places a label here, if anything above jumps to it.
    pub(super) fn place(&mut self, label: &Label) {
        if self.targets.contains(&label.0) {
            self.mark(label);
        }
    }

    /// Places a label that is jumped to later.
    pub(super) fn mark(&mut self, label: &Label) {
        let text = format!("{}:\n", label.0);
        let (defines, uses) = (SmallVec::new(), SmallVec::new());
        self.lines.push(Line { text, defines, uses, needed: Needed::Always });
    }

    /// A jump.
    pub(super) fn jump(&mut self, label: &Label) {
        self.targets.insert(label.0.clone());
        self.line(&[], format_args!("bra {};", label.0));
    }

    /// A jump where a predicate holds, or where it doesn't.
    pub(super) fn jump_if(&mut self, p: Value, when: When, agreement: Agreement, label: &Label) {
        let uniform = match agreement {
            Agreement::Uniform => ".uni",
            Agreement::Divergent => "",
        };
        self.targets.insert(label.0.clone());
        self.line(&[p], format_args!("@{}{p} bra{uniform} {};", when.sign(), label.0));
    }

    /// Drops lines whose results nothing reads.
    fn sweep(&mut self) {
        loop {
            let read: HashSet<Value> =
                self.lines.iter().flat_map(|l| l.uses.iter().filter(|u| !l.defines.contains(u))).copied().collect();
            let before = self.lines.len();
            self.lines.retain(|l| l.needed == Needed::Always || l.defines.iter().any(|d| read.contains(d)));
            if self.lines.len() == before {
                return;
            }
        }
    }

    /// The declarations of all registers, then the lines. Registers are numbered in the order of the lines.
    pub(super) fn finish(mut self, prologue: Text) -> String {
        self.lines.splice(0..0, prologue.lines);
        self.sweep();
        let mut names = Names::default();
        let mut body = String::new();
        for l in &self.lines {
            names.rename(&l.text, &mut body);
        }
        let mut out = String::new();
        for class in Class::ALL {
            let n = names.counts[class as usize];
            if n > 0 {
                let _ = writeln!(out, "\t.reg .{} {}<{n}>;", class.ty(), class.prefix());
            }
        }
        out.push('\n');
        out + &body
    }
}

/// New numbers of registers.
#[derive(Debug, Default)]
struct Names {
    new: HashMap<(Class, u32), u32>,
    counts: [u32; Class::ALL.len()],
}

impl Names {
    /// Appends a line with its registers renamed. A register is `%`, a class's letters and digits.
    fn rename(&mut self, line: &str, out: &mut String) {
        let mut parts = line.split('%');
        out.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let letters = part.len() - part.trim_start_matches(|c: char| c.is_ascii_lowercase()).len();
            let digits = part[letters..].len() - part[letters..].trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let class = Class::ALL.into_iter().find(|c| c.prefix()[1..] == part[..letters]);
            let number = part[letters..letters + digits].parse::<u32>();
            out.push('%');
            out.push_str(&part[..letters]);
            match (class, number) {
                (Some(class), Ok(n)) => {
                    let counts = &mut self.counts;
                    let new = *self.new.entry((class, n)).or_insert_with(|| {
                        counts[class as usize] += 1;
                        counts[class as usize] - 1
                    });
                    let _ = write!(out, "{new}");
                    out.push_str(&part[letters + digits..]);
                }
                _ => out.push_str(&part[letters..]),
            }
        }
    }
}

/// Which outcome of a predicate jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    True,
    False,
}

impl When {
    fn sign(self) -> &'static str {
        match self {
            When::True => "",
            When::False => "!",
        }
    }
}

/// Whether the threads of a block take a jump together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    Uniform,
    Divergent,
}
