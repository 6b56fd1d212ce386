//! ONNX files, as few bytes of protobuf as tests need.

/// A message under construction.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, mut number: u64) -> Self {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }

    fn int(self, field: u64, number: i64) -> Self {
        self.varint(field << 3).varint(number.cast_unsigned())
    }

    fn bytes(self, field: u64, bytes: &[u8]) -> Self {
        let mut long = self.varint(field << 3 | 2).varint(bytes.len() as u64);
        long.0.extend_from_slice(bytes);
        long
    }

    fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u64, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    fn all(self, field: u64, parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(self, |message, part| message.message(field, &part))
    }
}

pub const FLOAT: i64 = 1;
pub const INT64: i64 = 7;

/// An input or output: its name, type and rank, with any sizes.
pub struct Port(pub &'static str, pub i64, pub usize);

/// An operator, its domain, inputs, output and attributes (integers, or a list of them).
pub struct Node {
    pub domain: &'static str,
    pub operator: &'static str,
    pub inputs: &'static [&'static str],
    pub output: &'static str,
    pub attributes: Vec<(&'static str, Vec<i64>)>,
}

/// A constant tensor.
pub enum Constant<'a> {
    Floats(&'static str, &'a [i64], &'a [f32]),
    Integers(&'static str, &'a [i64], &'a [i64]),
}

fn port(Port(name, element_type, rank): &Port) -> Message {
    let axis = |axis: usize| Message::default().text(2, &format!("{name}_{axis}"));
    let shape = Message::default().all(1, (0..*rank).map(axis));
    let tensor = Message::default().int(1, *element_type).message(2, &shape);
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}

fn node(node: &Node) -> Message {
    let attribute = |(name, numbers): &(&'static str, Vec<i64>)| {
        let list = |message: Message, number: &i64| message.int(8, *number);
        numbers.iter().fold(Message::default().text(1, name), list).int(20, 7)
    };
    let named = |message: Message, name: &&str| message.text(1, name);
    node.inputs
        .iter()
        .fold(Message::default(), named)
        .text(2, node.output)
        .text(4, node.operator)
        .all(5, node.attributes.iter().map(attribute))
        .text(7, node.domain)
}

fn constant(constant: &Constant<'_>) -> Message {
    let (name, shape, element_type, bytes) = match constant {
        Constant::Floats(name, shape, numbers) => {
            (name, shape, FLOAT, numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
        }
        Constant::Integers(name, shape, numbers) => {
            (name, shape, INT64, numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
    };
    let sized = shape.iter().fold(Message::default(), |message, size| message.int(1, *size));
    sized.int(2, element_type).text(8, name).bytes(9, &bytes)
}

/// The bytes of a model.
pub fn model(
    nodes: &[Node],
    constants: &[Constant<'_>],
    inputs: &[Port],
    outputs: &[Port],
) -> Vec<u8> {
    let graph = Message::default()
        .all(1, nodes.iter().map(node))
        .text(2, "graph")
        .all(5, constants.iter().map(constant))
        .all(11, inputs.iter().map(port))
        .all(12, outputs.iter().map(port));
    let opset = |domain: &str, version| Message::default().text(1, domain).int(2, version);
    Message::default().int(1, 8).message(7, &graph).all(8, [opset("", 17), opset("msdeform", 1)]).0
}
