//! Resolves names and types: syntax to a [`Program`] of decoded instructions.

use std::collections::{BTreeMap, HashMap};

use crate::error::{ParseError, Problem};
use crate::lex::syntax;
use crate::op::{Class, Inst, Op, Order, Reg, Space};
use crate::opcode::Code;
use crate::regs::Regs;
use crate::syntax::{Entry, Item, Statement, Variable, unsupported};
use crate::types::Ty;

/// Values that differ from warp to warp or lane to lane (PTX ISA 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    WarpCount,
    LaneMask {
        below: bool,
        equal: bool,
        above: bool,
    },
    DynamicShared,
    /// The address of a `.global` variable of the module.
    Variable(u32),
}

/// A parameter's place in the parameter block.
#[derive(Debug, Clone)]
pub(crate) struct Param {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A kernel ready to run.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) code: Vec<Inst>,
    /// Registers before the first instruction: immediates filled in, the rest without values.
    pub(crate) template: Regs,
    pub(crate) specials: Vec<(Special, Reg)>,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: u64,
    /// Static shared memory, padded to where the dynamic part begins.
    pub(crate) shared_bytes: u64,
    pub(crate) local_bytes: u64,
    pub(crate) consts: Vec<u8>,
    pub(crate) max_threads: Option<[u32; 3]>,
    pub(crate) exact_threads: Option<[u32; 3]>,
    /// Bytes of the smallest access that may touch shared memory: the granule of the race check.
    pub(crate) granule: u32,
    /// Blocks cannot learn of each other: no atomics, no ordered accesses, no fences.
    pub(crate) independent: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Symbol {
    Register(Ty, Reg),
    Family(Ty, u32),
    Variable(Space, u64),
    /// A `.global` variable of the module, whose address the launch knows.
    Module(u32),
}

/// State of lowering one kernel.
pub(crate) struct Lower {
    pub(crate) scopes: Vec<HashMap<String, Symbol>>,
    pub(crate) immediates: BTreeMap<(bool, u64), Reg>,
    pub(crate) specials: BTreeMap<Special, Reg>,
    labels: HashMap<String, u32>,
    branches: Vec<(usize, String, u32)>,
    pub(crate) program: Program,
    guard: Option<(u32, bool)>,
    pub(crate) opcode: String,
    pub(crate) line: u32,
}

/// Bytes of parameters that a kernel may have (PTX ISA 5.1.6).
const MAX_PARAMS: u64 = 32_764;
/// Bytes of local memory that a thread may have.
const MAX_LOCAL: u64 = 512 << 10;

/// Names and offsets.
type Places = Vec<(String, u64)>;

/// Lays the module's constants out; shared by all kernels.
fn constants(variables: &[Variable]) -> Result<(Vec<u8>, Places), ParseError> {
    let (mut bytes, mut places) = (Vec::new(), Vec::new());
    for v in variables.iter().filter(|v| v.space == "const") {
        let at = (bytes.len() as u64).next_multiple_of(v.align);
        bytes.resize(at as usize, 0);
        bytes.extend_from_slice(&v.init);
        bytes.resize((at + v.bytes) as usize, 0);
        if bytes.len() > 1 << 16 {
            return Err(syntax(v.line, "more than 64 KiB of constants"));
        }
        places.push((v.name.clone(), at));
    }
    Ok((bytes, places))
}

/// Lowers one kernel of a module.
pub(crate) fn lower(entry: &Entry, variables: &[Variable]) -> Result<Program, ParseError> {
    let (consts, places) = constants(variables)?;
    let program = Program {
        name: entry.name.clone(),
        code: Vec::new(),
        template: Regs::new(),
        specials: Vec::new(),
        params: Vec::new(),
        param_bytes: 0,
        shared_bytes: 0,
        local_bytes: 0,
        consts,
        max_threads: entry.max_threads,
        exact_threads: entry.exact_threads,
        granule: 4,
        independent: true,
    };
    let mut l = Lower {
        scopes: vec![HashMap::new()],
        immediates: BTreeMap::new(),
        specials: BTreeMap::new(),
        labels: HashMap::new(),
        branches: Vec::new(),
        program,
        guard: None,
        opcode: String::new(),
        line: 0,
    };
    for (name, at) in places {
        l.scopes[0].insert(name, Symbol::Variable(Space::Const, at));
    }
    for v in &entry.params {
        let at = l.program.param_bytes.next_multiple_of(v.align);
        l.program.params.push(Param { offset: at, bytes: v.bytes });
        l.program.param_bytes = at + v.bytes;
        l.scopes[0].insert(v.name.clone(), Symbol::Variable(Space::Param, at));
    }
    if l.program.param_bytes > MAX_PARAMS {
        let reason = format!("{} bytes of parameters are more than {MAX_PARAMS}", l.program.param_bytes);
        return Err(syntax(entry.params[0].line, reason));
    }
    // Static variables come first whatever the order of declaration; the dynamic part follows them all.
    let local = entry.body.iter().filter_map(|i| if let Item::Variable(v) = i { Some(v) } else { None });
    let shared: Vec<&Variable> = variables.iter().chain(local).filter(|v| v.space == "shared").collect();
    for v in shared.iter().filter(|v| !v.dynamic).chain(shared.iter().filter(|v| v.dynamic)) {
        let at = l.program.shared_bytes.next_multiple_of(v.align);
        l.program.shared_bytes = at + v.bytes;
        l.scopes[0].insert(v.name.clone(), Symbol::Variable(Space::Shared, at));
    }
    for (index, v) in variables.iter().filter(|v| v.space == "global").enumerate() {
        l.scopes[0].insert(v.name.clone(), Symbol::Module(index as u32));
    }
    for item in &entry.body {
        l.item(item)?;
    }
    l.line = 0;
    l.guard = None;
    l.push(Op::Exit);
    for (at, label, line) in std::mem::take(&mut l.branches) {
        let target = l.labels.get(&label).copied();
        let target = target.ok_or(ParseError { line, problem: Problem::Undeclared(label) })?;
        l.program.code[at].op = Op::Branch { target };
    }
    l.program.independent = l.program.code.iter().all(|inst| match &inst.op {
        Op::Load(a) | Op::Store(a) => a.order == Order::Weak,
        op => !matches!(op, Op::Atom(_) | Op::Fence { .. }),
    });
    l.program.specials = l.specials.into_iter().collect();
    Ok(l.program)
}

impl Lower {
    fn item(&mut self, item: &Item) -> Result<(), ParseError> {
        match item {
            Item::Open => self.scopes.push(HashMap::new()),
            Item::Close => {
                self.scopes.pop();
            }
            Item::Label(name, line) => {
                if self.labels.insert(name.clone(), self.program.code.len() as u32).is_some() {
                    return Err(syntax(*line, format!("label `{name}` is declared twice")));
                }
            }
            Item::Registers { ty, name, count, line } => {
                let symbol = match count {
                    Some(count) => Symbol::Family(*ty, *count),
                    None => Symbol::Register(*ty, self.fresh(*ty)),
                };
                let scope = self.scopes.last_mut().expect("the kernel's own scope is never closed");
                if scope.insert(name.clone(), symbol).is_some() {
                    return Err(syntax(*line, format!("`{name}` is declared twice")));
                }
            }
            Item::Variable(v) => match v.space.as_str() {
                "local" => {
                    let at = self.program.local_bytes.next_multiple_of(v.align);
                    self.program.local_bytes = at + v.bytes;
                    if self.program.local_bytes > MAX_LOCAL {
                        return Err(syntax(v.line, format!("more than {MAX_LOCAL} bytes of local memory")));
                    }
                    let scope = self.scopes.last_mut().expect("the kernel's own scope is never closed");
                    scope.insert(v.name.clone(), Symbol::Variable(Space::Local, at));
                }
                "shared" => {}
                space => return Err(unsupported(v.line, &format!(".{space} {}", v.name), "inside a kernel", "5.1")),
            },
            Item::Statement(s) => self.statement(s)?,
        }
        Ok(())
    }

    fn statement(&mut self, s: &Statement) -> Result<(), ParseError> {
        self.line = s.line;
        self.opcode.clone_from(&s.opcode);
        self.guard = None;
        if let Some((name, negated)) = &s.guard {
            self.guard = Some((self.register(name, Ty::PRED)?.slot, *negated));
        }
        let mut code = Code::new(&s.opcode, s.line);
        if !(self.control(&mut code, &s.operands)?
            || self.memory(&mut code, &s.operands)?
            || self.alu(&mut code, &s.operands)?)
        {
            return Err(code.refuse("no such instruction is known", "9.7"));
        }
        code.finish()
    }

    pub(crate) fn push(&mut self, op: Op) {
        self.program.code.push(Inst { line: self.line, guard: self.guard, op });
    }

    /// A branch to a label that may come later.
    pub(crate) fn branch(&mut self, label: &str) {
        self.branches.push((self.program.code.len(), label.to_owned(), self.line));
        self.push(Op::Branch { target: 0 });
    }

    pub(crate) fn fresh(&mut self, ty: Ty) -> Reg {
        self.program.template.fresh(class(ty))
    }
}

pub(crate) fn class(ty: Ty) -> Class {
    match ty.width() {
        1 => Class::Pred,
        64 => Class::W64,
        _ => Class::W32,
    }
}
