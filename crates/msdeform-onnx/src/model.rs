//! A model file as its fields, from which it is put together again.
//!
//! What is not replaced keeps the bytes that were read, unknown fields included.

use std::collections::{BTreeSet, HashMap, HashSet};

use prost::Message;
use prost::bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::OnnxError;
use crate::proto::{
    GRAPH_INPUT, GRAPH_NODE, GRAPH_OUTPUT, MODEL_GRAPH, MODEL_OPSET, Node, OpsetId, Tensor,
    ValueInfo, put,
};

/// Fields that are only read.
const MODEL_FUNCTIONS: u32 = 25;
const GRAPH_INITIALIZER: u32 = 5;
const GRAPH_VALUE_INFO: u32 = 13;
/// The field of `FunctionProto` with its nodes.
const FUNCTION_NODE: u32 = 7;
/// Subgraphs within subgraphs, at most.
const MOST_NESTED: usize = 32;

/// A field: its number, all of its bytes with the key, and its content if it has a length.
#[derive(Clone, Debug)]
struct Field {
    tag: u32,
    whole: Bytes,
    content: Option<Bytes>,
}

fn fields(message: &Bytes) -> Result<Vec<Field>, OnnxError> {
    let mut rest = message.clone();
    let mut fields = Vec::new();
    while rest.has_remaining() {
        let at = message.len() - rest.len();
        let (tag, wire) = decode_key(&mut rest)?;
        let mut content = None;
        if wire == WireType::LengthDelimited {
            let length = usize::try_from(decode_varint(&mut rest)?).ok();
            let length = length.filter(|&length| length <= rest.len()).ok_or(OnnxError::CutOff)?;
            content = Some(rest.split_to(length));
        } else {
            skip_field(wire, tag, &mut rest, DecodeContext::default())?;
        }
        let end = message.len() - rest.len();
        fields.push(Field { tag, whole: message.slice(at..end), content });
    }
    Ok(fields)
}

fn of_kind(fields: &[Field], tag: u32) -> impl Iterator<Item = &Bytes> {
    fields.iter().filter(move |field| field.tag == tag).filter_map(|field| field.content.as_ref())
}

fn decode_all<M: Message + Default>(fields: &[Field], tag: u32) -> Result<Vec<M>, OnnxError> {
    of_kind(fields, tag).map(|content| Ok(M::decode(content.clone())?)).collect()
}

/// A model that was read.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    model_fields: Vec<Field>,
    graph_fields: Vec<Field>,
    pub(crate) opsets: Vec<OpsetId>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) initializers: Vec<Tensor>,
    pub(crate) inputs: Vec<ValueInfo>,
    pub(crate) outputs: Vec<ValueInfo>,
    pub(crate) value_info: Vec<ValueInfo>,
    /// What subgraphs of each node take from the graph around them, node by node.
    pub(crate) captured: Vec<Vec<String>>,
    /// `GridSample` and attention nodes in subgraphs and functions, which are not searched for sites.
    pub(crate) hidden: Vec<String>,
}

/// What is put in the place of nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// Nodes that go, by index.
    pub(crate) removed: HashSet<usize>,
    /// Initializers that go, by name.
    pub(crate) unused: HashSet<String>,
    /// Nodes that come, before the node of this index.
    pub(crate) added: Vec<(usize, Node)>,
    /// Domains that they are of, and their versions.
    pub(crate) domains: Vec<(&'static str, i64)>,
}

impl Model {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, OnnxError> {
        let whole = Bytes::copy_from_slice(bytes);
        let model_fields = fields(&whole)?;
        let graphs: Vec<&Bytes> = of_kind(&model_fields, MODEL_GRAPH).collect();
        let [graph] = graphs[..] else { return Err(OnnxError::NoGraph) };
        let mut graph_fields = fields(graph)?;
        let nodes: Vec<Node> = decode_all(&graph_fields, GRAPH_NODE)?;
        let mut hidden = Vec::new();
        let captured = nodes
            .iter()
            .map(|node| {
                let mut names = Vec::new();
                subgraphs(node, &mut names, &mut hidden, 0)?;
                Ok(names)
            })
            .collect::<Result<Vec<Vec<String>>, OnnxError>>()?;
        let order = topological(&nodes, &captured)?;
        sort_nodes(&mut graph_fields, &order);
        let nodes = order.iter().map(|&at| nodes[at].clone()).collect();
        let captured = order.iter().map(|&at| captured[at].clone()).collect();
        for function in of_kind(&model_fields, MODEL_FUNCTIONS) {
            let nodes: Vec<Node> = decode_all(&fields(function)?, FUNCTION_NODE)?;
            let found = nodes.iter().filter(|node| is_attention(node));
            hidden.extend(found.map(|node| node.label().to_owned()));
        }
        Ok(Self {
            opsets: decode_all(&model_fields, MODEL_OPSET)?,
            initializers: decode_all(&graph_fields, GRAPH_INITIALIZER)?,
            inputs: decode_all(&graph_fields, GRAPH_INPUT)?,
            outputs: decode_all(&graph_fields, GRAPH_OUTPUT)?,
            value_info: decode_all(&graph_fields, GRAPH_VALUE_INFO)?,
            nodes,
            captured,
            hidden,
            model_fields,
            graph_fields,
        })
    }

    /// The version of the standard's operators that it uses.
    pub(crate) fn opset(&self) -> i64 {
        let standard = |id: &&OpsetId| matches!(id.domain.as_str(), "" | "ai.onnx");
        self.opsets.iter().find(standard).map_or(0, |id| id.version)
    }

    /// Files next to the model that hold its weights.
    pub(crate) fn external_files(&self) -> Vec<String> {
        let constants = self.nodes.iter().flat_map(|node| &node.attribute);
        let constants = constants.filter_map(|attribute| attribute.t.as_ref());
        let tensors = self.initializers.iter().chain(constants);
        let mut files: Vec<String> =
            tensors.filter_map(Tensor::external_file).map(str::to_owned).collect();
        files.sort();
        files.dedup();
        files
    }

    /// The file with these changes.
    pub(crate) fn with(&self, changes: &Changes) -> Vec<u8> {
        let mut graph = Vec::new();
        let mut index = 0;
        let mut initializers = self.initializers.iter();
        let add = |graph: &mut Vec<u8>, at: usize| {
            for (_, node) in changes.added.iter().filter(|(before, _)| *before == at) {
                put(graph, GRAPH_NODE, &node.encode_to_vec());
            }
        };
        for field in &self.graph_fields {
            if field.tag == GRAPH_INITIALIZER && field.content.is_some() {
                if initializers.next().is_none_or(|tensor| !changes.unused.contains(&tensor.name)) {
                    graph.extend_from_slice(&field.whole);
                }
                continue;
            }
            if field.tag != GRAPH_NODE || field.content.is_none() {
                graph.extend_from_slice(&field.whole);
                continue;
            }
            add(&mut graph, index);
            if !changes.removed.contains(&index) {
                graph.extend_from_slice(&field.whole);
            }
            index += 1;
        }
        add(&mut graph, index);
        let mut out = Vec::new();
        for field in &self.model_fields {
            if field.tag == MODEL_GRAPH && field.content.is_some() {
                put(&mut out, MODEL_GRAPH, &graph);
            } else {
                out.extend_from_slice(&field.whole);
            }
        }
        for &(domain, version) in &changes.domains {
            if !self.opsets.iter().any(|id| id.domain == domain) {
                let id = OpsetId { domain: domain.into(), version };
                put(&mut out, MODEL_OPSET, &id.encode_to_vec());
            }
        }
        out
    }
}

/// Whether the node is, or may be a part of, what is looked for.
fn is_attention(node: &Node) -> bool {
    node.is("GridSample") || crate::form::Operator::of(node).is_some()
}

/// The nodes in an order in which each comes after those whose outputs it takes. A file that is in such an order keeps its own.
fn topological(nodes: &[Node], captured: &[Vec<String>]) -> Result<Vec<usize>, OnnxError> {
    let mut producers = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        let outputs = node.output.iter().filter(|name| !name.is_empty());
        producers.extend(outputs.map(|name| (name.as_str(), at)));
    }
    let producer = |name: &String| producers.get(name.as_str()).copied();
    let is_late =
        |(at, node): (usize, &Node)| node.input.iter().filter_map(producer).any(|from| from >= at);
    if !nodes.iter().enumerate().any(is_late) {
        return Ok((0..nodes.len()).collect());
    }
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut missing = vec![0usize; nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        // What a subgraph names may be its own: the node itself is not before it.
        let captured = captured[at].iter().filter_map(producer).filter(|&from| from != at);
        let needed: HashSet<usize> =
            node.input.iter().filter_map(producer).chain(captured).collect();
        missing[at] = needed.len();
        needed.into_iter().for_each(|from| users[from].push(at));
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|&at| missing[at] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(at) = ready.pop_first() {
        order.push(at);
        for &user in &users[at] {
            missing[user] -= 1;
            if missing[user] == 0 {
                ready.insert(user);
            }
        }
    }
    match (0..nodes.len()).find(|&at| missing[at] > 0) {
        Some(at) => Err(OnnxError::Cyclic { node: nodes[at].label().to_owned() }),
        None => Ok(order),
    }
}

/// Brings the fields of nodes into this order. Other fields stay where they are.
fn sort_nodes(fields: &mut [Field], order: &[usize]) {
    if order.windows(2).all(|pair| pair[0] < pair[1]) {
        return;
    }
    let is_node = |field: &Field| field.tag == GRAPH_NODE && field.content.is_some();
    let nodes: Vec<Field> = fields.iter().filter(|field| is_node(field)).cloned().collect();
    let places = fields.iter_mut().filter(|field| is_node(field));
    places.zip(order).for_each(|(place, &at)| *place = nodes[at].clone());
}

/// Gathers every name that subgraphs of the node use; more than they capture, which does no harm; and the names of the nodes
/// of attention that they hold.
fn subgraphs(
    node: &Node,
    names: &mut Vec<String>,
    hidden: &mut Vec<String>,
    depth: usize,
) -> Result<(), OnnxError> {
    if depth > MOST_NESTED {
        return Err(OnnxError::TooDeep);
    }
    for attribute in &node.attribute {
        for graph in attribute.g.iter().chain(&attribute.graphs) {
            let fields = fields(graph)?;
            for node in decode_all::<Node>(&fields, GRAPH_NODE)? {
                if is_attention(&node) {
                    hidden.push(node.label().to_owned());
                }
                subgraphs(&node, names, hidden, depth + 1)?;
                names.extend(node.input);
            }
            for output in decode_all::<ValueInfo>(&fields, GRAPH_OUTPUT)? {
                names.push(output.name);
            }
        }
    }
    Ok(())
}
