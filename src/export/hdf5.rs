//! HDF5 files with the least features: groups, datasets that lie whole and uncompressed, attributes that are text.
//!
//! This is the form that libhdf5 writes by default (superblock 0, groups as symbol tables, text of variable length in a
//! global heap), which all that reads Keras files understands. The numbers lie first, in the order of their names, so that
//! they are copied from where they are; what describes them follows. Equal contents are equal bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use intwain_ir::DType;

/// An address that is none.
const NOWHERE: u64 = u64::MAX;
/// Symbols of a leaf, and children of a node of the trees that index groups: twice what the superblock says.
const SYMBOLS: usize = 2 * 4;
const CHILDREN: usize = 2 * 16;
/// Bytes of the superblock, of a leaf, and of a node.
const SUPERBLOCK: u64 = 96;
const LEAF: usize = 8 + SYMBOLS * ENTRY;
const ENTRY: usize = 40;
const NODE: usize = 24 + 8 * (2 * CHILDREN + 1);
/// Where numbers begin, and to what they are aligned.
const ALIGNMENT: u64 = 64;
/// Texts of one attribute; a message holds 64 KiB, a reference to a text takes 16 bytes.
pub(super) const TEXTS: usize = 2000;
/// Objects of one collection of the global heap, whose numbers have 16 bits.
const COLLECTION: usize = 4096;
/// libhdf5 makes no smaller collections.
const LEAST_COLLECTION: usize = 4096;

/// A group: text about it, and what is in it.
#[derive(Debug, Default)]
pub(super) struct Group<'a> {
    attributes: Vec<(String, Attribute)>,
    members: BTreeMap<String, Node<'a>>,
}

#[derive(Debug)]
enum Node<'a> {
    Group(Group<'a>),
    Dataset(Dataset<'a>),
}

/// Text about a group or a dataset.
#[derive(Debug)]
enum Attribute {
    One(String),
    /// None at all is a list of no numbers, which is what NumPy makes of it.
    Many(Vec<String>),
}

/// An array.
#[derive(Debug)]
pub(super) struct Dataset<'a> {
    /// The element type.
    pub(super) dtype: DType,
    /// The extents.
    pub(super) shape: Vec<usize>,
    /// The elements, little-endian.
    pub(super) data: Cow<'a, [u8]>,
}

/// A name that is taken.
#[derive(Debug)]
pub(super) struct Taken {
    /// Where.
    pub(super) path: String,
}

impl<'a> Group<'a> {
    /// The group at `path`, with all that lead to it.
    pub(super) fn group(&mut self, path: &str) -> Result<&mut Group<'a>, Taken> {
        let mut here = self;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            here = match here.members.entry(name.to_string()).or_insert_with(|| Node::Group(Group::default())) {
                Node::Group(group) => group,
                Node::Dataset(_) => return Err(Taken { path: path.to_string() }),
            };
        }
        Ok(here)
    }

    /// Adds an array at `path`.
    pub(super) fn put(&mut self, path: &str, dataset: Dataset<'a>) -> Result<(), Taken> {
        let (outer, name) = path.rsplit_once('/').unwrap_or(("", path));
        let taken = self.group(outer)?.members.insert(name.to_string(), Node::Dataset(dataset));
        if taken.is_some() { Err(Taken { path: path.to_string() }) } else { Ok(()) }
    }

    /// Says something about the group.
    pub(super) fn text(&mut self, name: &str, text: impl Into<String>) {
        self.attributes.push((name.to_string(), Attribute::One(text.into())));
    }

    /// Lists something about the group; a long list becomes `name0`, `name1`, …, as Keras divides it.
    pub(super) fn texts(&mut self, name: &str, texts: Vec<String>) {
        if texts.len() <= TEXTS {
            self.attributes.push((name.to_string(), Attribute::Many(texts)));
            return;
        }
        for (i, part) in texts.chunks(TEXTS).enumerate() {
            self.attributes.push((format!("{name}{i}"), Attribute::Many(part.to_vec())));
        }
    }

    /// Bytes of all arrays.
    pub(super) fn bytes(&self) -> usize {
        let mut datasets = Vec::new();
        self.datasets(&mut datasets);
        datasets.iter().map(|dataset| dataset.data.len()).sum()
    }

    /// All arrays in order of their names.
    fn datasets<'g>(&'g self, found: &mut Vec<&'g Dataset<'a>>) {
        for member in self.members.values() {
            match member {
                Node::Group(group) => group.datasets(found),
                Node::Dataset(dataset) => found.push(dataset),
            }
        }
    }

    /// All text in the order in which [`Writer::header`] refers to it.
    fn all_text<'g>(&'g self, found: &mut Vec<&'g str>) {
        for member in self.members.values() {
            match member {
                Node::Group(group) => group.all_text(found),
                Node::Dataset(dataset) => found.extend(dataset.remark()),
            }
        }
        for (_, attribute) in &self.attributes {
            match attribute {
                Attribute::One(text) => found.push(text),
                Attribute::Many(texts) => found.extend(texts.iter().map(String::as_str)),
            }
        }
    }
}

impl Dataset<'_> {
    /// What Keras says about elements that HDF5 has no type for.
    fn remark(&self) -> Option<&'static str> {
        (self.dtype == DType::BF16).then_some("bfloat16")
    }
}

/// Writes a file whose root is this group.
pub(super) fn write(root: &Group<'_>, sink: &mut impl Write) -> io::Result<()> {
    let mut datasets = Vec::new();
    root.datasets(&mut datasets);
    let mut end = SUPERBLOCK;
    let mut places = Vec::new();
    for dataset in &datasets {
        let start = end.next_multiple_of(ALIGNMENT);
        places.push(if dataset.data.is_empty() { NOWHERE } else { start });
        end = if dataset.data.is_empty() { end } else { start + dataset.data.len() as u64 };
    }
    let mut texts = Vec::new();
    root.all_text(&mut texts);
    let base = end.next_multiple_of(ALIGNMENT);
    let mut writer =
        Writer { base, bytes: Vec::new(), places: places.clone().into_iter(), texts: Vec::new().into_iter() };
    writer.texts = writer.heap(&texts).into_iter();
    let table = writer.group(root);
    let after = base + writer.bytes.len() as u64;

    sink.write_all(&superblock(&table, after))?;
    let mut at = SUPERBLOCK;
    for (dataset, place) in datasets.iter().zip(places).filter(|(_, place)| *place != NOWHERE) {
        pad(sink, at, place)?;
        sink.write_all(&dataset.data)?;
        at = place + dataset.data.len() as u64;
    }
    pad(sink, at, base)?;
    sink.write_all(&writer.bytes)
}

fn pad(sink: &mut impl Write, from: u64, to: u64) -> io::Result<()> {
    sink.write_all(&vec![0; (to - from) as usize])
}

fn superblock(root: &Table, end: u64) -> Vec<u8> {
    let mut out = b"\x89HDF\r\n\x1a\n".to_vec();
    // Versions; addresses and lengths have 8 bytes.
    out.extend([0, 0, 0, 0, 0, 8, 8, 0]);
    out.extend((SYMBOLS as u16 / 2).to_le_bytes());
    out.extend((CHILDREN as u16 / 2).to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend([0, NOWHERE, end, NOWHERE].iter().flat_map(|x: &u64| x.to_le_bytes()));
    root.entry(0, &mut out);
    out
}

/// Where the parts of a group, or a dataset, lie.
#[derive(Clone, Copy)]
struct Table {
    header: u64,
    /// Tree and heap of a group.
    group: Option<(u64, u64)>,
}

impl Table {
    /// What a list of symbols says about it.
    fn entry(&self, name: u64, out: &mut Vec<u8>) {
        let (tree, heap) = self.group.unwrap_or((0, 0));
        let cached = u64::from(self.group.is_some());
        out.extend([name, self.header, cached, tree, heap].iter().flat_map(|x: &u64| x.to_le_bytes()));
    }
}

/// A text in the global heap.
type Reference = [u8; 16];

struct Writer {
    /// The address of the first byte.
    base: u64,
    bytes: Vec<u8>,
    places: std::vec::IntoIter<u64>,
    texts: std::vec::IntoIter<Reference>,
}

impl Writer {
    fn here(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    fn numbers(&mut self, numbers: &[u64]) {
        self.bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    }

    /// Puts texts into collections.
    fn heap(&mut self, texts: &[&str]) -> Vec<Reference> {
        let mut references = Vec::with_capacity(texts.len());
        for part in texts.chunks(COLLECTION) {
            let address = self.here();
            let used = 16 + part.iter().map(|text| 16 + text.len().next_multiple_of(8)).sum::<usize>();
            // What is left is an object of its own, which takes 16 bytes.
            let size = if used + 16 > LEAST_COLLECTION { used + 16 } else { LEAST_COLLECTION };
            self.bytes.extend(b"GCOL\x01\0\0\0");
            self.numbers(&[size as u64]);
            for (i, text) in part.iter().enumerate() {
                let index = i as u32 + 1;
                self.numbers(&[u64::from(index) | 1 << 16, text.len() as u64]);
                self.bytes.extend(text.as_bytes());
                self.align();
                let mut reference = [0; 16];
                reference[..4].copy_from_slice(&(text.len() as u32).to_le_bytes());
                reference[4..12].copy_from_slice(&address.to_le_bytes());
                reference[12..].copy_from_slice(&index.to_le_bytes());
                references.push(reference);
            }
            self.numbers(&[0, (size - used) as u64]);
            self.bytes.resize(self.bytes.len() + size - used - 16, 0);
        }
        references
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    fn group(&mut self, group: &Group<'_>) -> Table {
        let members: Vec<(&str, Table)> = group
            .members
            .iter()
            .map(|(name, node)| match node {
                Node::Group(group) => (&**name, self.group(group)),
                Node::Dataset(dataset) => (&**name, self.dataset(dataset)),
            })
            .collect();
        // The heap of names begins with the empty one, which is below all others.
        let mut names = vec![0; 8];
        let mut symbols = Vec::new();
        for (name, table) in members {
            symbols.push((names.len() as u64, table));
            names.extend(name.as_bytes());
            names.resize((names.len() + 1).next_multiple_of(8), 0);
        }
        let heap = self.here();
        self.bytes.extend(b"HEAP\0\0\0\0");
        // One: no free space.
        self.numbers(&[names.len() as u64, 1, heap + 32]);
        self.bytes.extend(names);
        let tree = self.tree(&symbols);
        let mut messages = vec![message(0x11, &[tree.to_le_bytes(), heap.to_le_bytes()].concat())];
        for (name, attribute) in &group.attributes {
            let (shape, count) = match attribute {
                Attribute::One(_) => (None, 1),
                Attribute::Many(texts) => (Some(texts.len()), texts.len()),
            };
            let texts: Vec<Reference> = self.texts.by_ref().take(count).collect();
            messages.push(attribute_message(name, shape, &texts));
        }
        Table { header: self.header(&messages), group: Some((tree, heap)) }
    }

    /// The tree over a group's symbols, which are in order: leaves, then nodes up to one that is the root.
    fn tree(&mut self, symbols: &[(u64, Table)]) -> u64 {
        let mut below: Vec<(u64, u64)> = Vec::new();
        for part in symbols.chunks(SYMBOLS) {
            let start = self.bytes.len();
            below.push((part.last().map_or(0, |(name, _)| *name), self.here()));
            self.bytes.extend(b"SNOD\x01\0");
            self.bytes.extend((part.len() as u16).to_le_bytes());
            part.iter().for_each(|(name, table)| table.entry(*name, &mut self.bytes));
            self.bytes.resize(start + LEAF, 0);
        }
        for level in 0.. {
            let first = self.here();
            let count = below.len().div_ceil(CHILDREN).max(1);
            let at = |i: usize| first + (i * NODE) as u64;
            let mut nodes = Vec::new();
            let mut least = 0;
            for i in 0..count {
                let start = self.bytes.len();
                let children = below.chunks(CHILDREN).nth(i).unwrap_or_default();
                self.bytes.extend(b"TREE\0");
                self.bytes.push(level);
                self.bytes.extend((children.len() as u16).to_le_bytes());
                self.numbers(&[
                    if i > 0 { at(i - 1) } else { NOWHERE },
                    if i + 1 < count { at(i + 1) } else { NOWHERE },
                    least,
                ]);
                for (last, address) in children {
                    self.numbers(&[*address, *last]);
                    least = *last;
                }
                self.bytes.resize(start + NODE, 0);
                nodes.push((least, at(i)));
            }
            if count == 1 {
                return first;
            }
            below = nodes;
        }
        unreachable!("each level has fewer nodes than the one below")
    }

    fn dataset(&mut self, dataset: &Dataset<'_>) -> Table {
        let place = self.places.next().expect("every dataset has a place");
        let size = dataset.data.len() as u64;
        let layout = [&[3, 1][..], &place.to_le_bytes(), &size.to_le_bytes()].concat();
        let mut messages = vec![
            message(0x01, &dataspace(&dataset.shape)),
            message(0x03, &datatype(dataset.dtype)),
            // No fill value of its own, written where space is taken.
            message(0x05, &[2, 2, 2, 1, 0, 0, 0, 0]),
            message(0x08, &layout),
        ];
        if dataset.remark().is_some() {
            let text = self.texts.next().expect("every remark is in the heap");
            messages.push(attribute_message("dtype", None, &[text]));
        }
        Table { header: self.header(&messages), group: None }
    }

    fn header(&mut self, messages: &[Vec<u8>]) -> u64 {
        let address = self.here();
        let size: usize = messages.iter().map(Vec::len).sum();
        self.bytes.extend([1, 0]);
        self.bytes.extend((messages.len() as u16).to_le_bytes());
        self.bytes.extend(1u32.to_le_bytes());
        self.bytes.extend((size as u32).to_le_bytes());
        self.bytes.extend([0; 4]);
        messages.iter().for_each(|message| self.bytes.extend(message));
        address
    }
}

fn message(kind: u16, data: &[u8]) -> Vec<u8> {
    let padded = data.len().next_multiple_of(8);
    let mut out = kind.to_le_bytes().to_vec();
    out.extend((padded as u16).to_le_bytes());
    out.extend([0; 4]);
    out.extend(data);
    out.resize(8 + padded, 0);
    out
}

/// Text, or a list of it.
fn attribute_message(name: &str, shape: Option<usize>, texts: &[Reference]) -> Vec<u8> {
    // Text of variable length in UTF-8, whose base type is a byte.
    const TEXT: [u8; 20] = [0x19, 1, 1, 0, 16, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 8, 0];
    let of_nothing = datatype(DType::F64);
    let datatype = if shape == Some(0) { &of_nothing[..] } else { &TEXT };
    let space = dataspace(shape.as_slice());
    let mut data = vec![1, 0];
    for length in [name.len() + 1, datatype.len(), space.len()] {
        data.extend((length as u16).to_le_bytes());
    }
    for part in [format!("{name}\0").as_bytes(), datatype, &space] {
        data.extend(part);
        data.resize(data.len().next_multiple_of(8), 0);
    }
    data.extend(texts.concat());
    message(0x0c, &data)
}

fn dataspace(shape: &[usize]) -> Vec<u8> {
    let mut out = vec![1, shape.len() as u8, 0, 0, 0, 0, 0, 0];
    out.extend(shape.iter().flat_map(|&d| (d as u64).to_le_bytes()));
    out
}

fn datatype(dtype: DType) -> Vec<u8> {
    let integer = |size: u8, signed: u8| vec![0x10, signed, 0, 0, size, 0, 0, 0, 0, 0, 8 * size, 0];
    // Sign, bits of the exponent, bits of the mantissa.
    let float = |size: u8, exponent: u8, mantissa: u8, bias: u32| {
        let head = [0x11, 0x20, 8 * size - 1, 0, size, 0, 0, 0, 0, 0, 8 * size, 0, mantissa, exponent, 0, mantissa];
        [&head[..], &bias.to_le_bytes()].concat()
    };
    match dtype {
        // h5py's: an enumeration of bytes.
        DType::Bool => {
            let head = [0x18, 2, 0, 0, 1, 0, 0, 0];
            [&head[..], &integer(1, 8), b"FALSE\0\0\0TRUE\0\0\0\0\0\x01"].concat()
        }
        DType::I8 => integer(1, 8),
        DType::I16 => integer(2, 8),
        DType::I32 => integer(4, 8),
        DType::I64 => integer(8, 8),
        DType::U8 => integer(1, 0),
        DType::U32 => integer(4, 0),
        DType::F16 => float(2, 5, 10, 15),
        // Opaque, two bytes long.
        DType::BF16 => vec![0x15, 0, 0, 0, 2, 0, 0, 0],
        DType::F32 => float(4, 8, 23, 127),
        DType::F64 => float(8, 11, 52, 1023),
    }
}
