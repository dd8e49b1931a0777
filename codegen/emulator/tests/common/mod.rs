//! What the tests share: uploads, downloads and a fixed random sequence.
#![allow(clippy::unwrap_used, dead_code, unused_imports, unreachable_pub, missing_docs)]

pub use intwain_emulator::{AddressSpace, Arg, Check, Device, FaultKind, Launch, LaunchError, Module, Schedule, Stats};

pub fn device() -> Device {
    let mut device = Device::new(&AddressSpace::new(), 0);
    device.global_races = Check::On;
    device
}

pub fn floats(device: &Device, values: &[f32]) -> u64 {
    device.upload(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap()
}

pub fn words(device: &Device, values: &[u32]) -> u64 {
    device.upload(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap()
}

pub fn read_words(device: &Device, address: u64, n: usize) -> Vec<u32> {
    let mut bytes = vec![0; 4 * n];
    device.read(address, &mut bytes).unwrap();
    bytes.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

pub fn read_floats(device: &Device, address: u64, n: usize) -> Vec<f32> {
    read_words(device, address, n).into_iter().map(f32::from_bits).collect()
}

pub fn launch(grid: [u32; 3], block: [u32; 3], shared: u32) -> Launch {
    Launch { grid, block, shared }
}

/// A one-kernel module `k` with parameters of 64 (`p`) or 32 bits (`n`), and a body.
pub fn module(params: &str, body: &str) -> Module {
    Module::parse(&text(params, body)).unwrap_or_else(|e| panic!("{e}"))
}

pub fn text(params: &str, body: &str) -> String {
    let params: Vec<String> = params
        .chars()
        .enumerate()
        .map(|(i, c)| format!(".param .{} p{i}", if c == 'p' { "u64" } else { "u32" }))
        .collect();
    let registers = ".reg .pred %p<9>; .reg .b32 %r<99>; .reg .b64 %d<99>; .reg .f32 %f<99>; .reg .b16 %h<9>;";
    format!(
        ".version 7.4\n.target sm_80\n.address_size 64\n.visible .entry k({})\n{{ {registers}\n{body}\nret; }}\n",
        params.join(", ")
    )
}

pub fn fault(result: Result<Stats, LaunchError>) -> (FaultKind, u32) {
    match result {
        Err(LaunchError::Fault(fault)) => (fault.kind.clone(), fault.line),
        other => panic!("expected a fault, got {other:?}"),
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In [-1, 1).
    pub fn float(&mut self) -> f32 {
        ((self.word() >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    }
}

/// C = A·B with 16×16 tiles in shared memory, with the given text where its two barriers belong.
pub fn tiled_matmul(first: &str, second: &str) -> String {
    format!(
        ".shared .align 4 .f32 ta[256]; .shared .align 4 .f32 tb[256];
        ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; ld.param.u64 %d3, [p2]; ld.param.u32 %r20, [p3];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y;
        mad.lo.u32 %r5, %r4, 16, %r2; mad.lo.u32 %r6, %r3, 16, %r1;
        mad.lo.u32 %r7, %r2, 16, %r1; shl.b32 %r7, %r7, 2; mov.u32 %r8, ta; mov.u32 %r9, tb;
        add.u32 %r10, %r8, %r7; add.u32 %r11, %r9, %r7;
        mov.f32 %f1, 0f00000000; mov.u32 %r12, 0;
        TILE:
        add.u32 %r13, %r12, %r1; mad.lo.u32 %r14, %r5, %r20, %r13; mul.wide.u32 %d4, %r14, 4; add.s64 %d4, %d1, %d4;
        add.u32 %r13, %r12, %r2; mad.lo.u32 %r14, %r13, %r20, %r6; mul.wide.u32 %d5, %r14, 4; add.s64 %d5, %d2, %d5;
        ld.global.f32 %f2, [%d4]; ld.global.f32 %f3, [%d5]; st.shared.f32 [%r10], %f2; st.shared.f32 [%r11], %f3;
        {first}
        shl.b32 %r15, %r2, 6; add.u32 %r15, %r8, %r15; shl.b32 %r16, %r1, 2; add.u32 %r16, %r9, %r16; mov.u32 %r17, 0;
        INNER: ld.shared.f32 %f4, [%r15]; ld.shared.f32 %f5, [%r16]; fma.rn.f32 %f1, %f4, %f5, %f1;
        add.u32 %r15, %r15, 4; add.u32 %r16, %r16, 64; add.u32 %r17, %r17, 1;
        setp.lt.u32 %p1, %r17, 16; @%p1 bra INNER;
        {second}
        add.u32 %r12, %r12, 16; setp.lt.u32 %p1, %r12, %r20; @%p1 bra TILE;
        mad.lo.u32 %r14, %r5, %r20, %r6; mul.wide.u32 %d4, %r14, 4; add.s64 %d4, %d3, %d4; st.global.f32 [%d4], %f1;"
    )
}
