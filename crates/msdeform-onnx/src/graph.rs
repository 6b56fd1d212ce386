//! Who makes and who uses a tensor.

use std::collections::{HashMap, HashSet};

use crate::model::Model;
use crate::proto::{Node, Tensor};

/// A model's main graph, indexed.
#[derive(Debug)]
pub(crate) struct Graph<'a> {
    pub(crate) model: &'a Model,
    producers: HashMap<&'a str, usize>,
    consumers: HashMap<&'a str, Vec<usize>>,
    /// Without those that are inputs as well, because a caller may replace them.
    initializers: HashMap<&'a str, &'a Tensor>,
    /// Tensors that stay even if no node consumes them: outputs of the graph, names that subgraphs use.
    kept: HashSet<&'a str>,
}

impl<'a> Graph<'a> {
    pub(crate) fn new(model: &'a Model) -> Self {
        let mut producers = HashMap::new();
        let mut consumers: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, node) in model.nodes.iter().enumerate() {
            for output in node.output.iter().filter(|name| !name.is_empty()) {
                producers.insert(output.as_str(), index);
            }
            for input in node.input.iter().filter(|name| !name.is_empty()) {
                let users = consumers.entry(input).or_default();
                if users.last() != Some(&index) {
                    users.push(index);
                }
            }
        }
        let outputs = model.outputs.iter().map(|info| info.name.as_str());
        let captured = model.captured.iter().flatten().map(String::as_str);
        let inputs: HashSet<&str> = model.inputs.iter().map(|info| info.name.as_str()).collect();
        let initializers = model.initializers.iter().map(|tensor| (tensor.name.as_str(), tensor));
        Self {
            producers,
            consumers,
            initializers: initializers.filter(|(name, _)| !inputs.contains(name)).collect(),
            kept: outputs.chain(captured).collect(),
            model,
        }
    }

    pub(crate) fn node(&self, index: usize) -> &'a Node {
        &self.model.nodes[index]
    }

    /// The node that makes a tensor; none makes inputs and initializers.
    pub(crate) fn producer(&self, name: &str) -> Option<usize> {
        self.producers.get(name).copied()
    }

    pub(crate) fn consumers(&self, name: &str) -> &[usize] {
        self.consumers.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn is_kept(&self, name: &str) -> bool {
        self.kept.contains(name)
    }

    /// A constant, however it is written.
    pub(crate) fn constant(&self, name: &str) -> Option<&'a Tensor> {
        if let Some(tensor) = self.initializers.get(name) {
            return Some(tensor);
        }
        let node = self.node(self.producer(name)?);
        if node.is("Constant") { node.attribute("value")?.t.as_ref() } else { None }
    }

    /// These nodes, and the nodes above them that no other node uses.
    /// A node above them stays if one of its outputs is in `used`.
    pub(crate) fn dead_without(
        &self,
        roots: impl IntoIterator<Item = usize>,
        used: &HashSet<&str>,
    ) -> HashSet<usize> {
        let mut dead: HashSet<usize> = HashSet::new();
        let mut waiting: Vec<usize> = roots.into_iter().collect();
        let forced: HashSet<usize> = waiting.iter().copied().collect();
        while let Some(index) = waiting.pop() {
            let node = self.node(index);
            let is_needed = |output: &String| {
                self.is_kept(output)
                    || used.contains(output.as_str())
                    || self.consumers(output).iter().any(|user| !dead.contains(user))
            };
            if dead.contains(&index)
                || (!forced.contains(&index) && node.output.iter().any(is_needed))
            {
                continue;
            }
            dead.insert(index);
            waiting.extend(node.input.iter().filter_map(|name| self.producer(name)));
        }
        dead
    }

    /// Initializers that were there for these nodes alone.
    pub(crate) fn unused_without(
        &self,
        dead: &HashSet<usize>,
        used: &HashSet<&str>,
    ) -> HashSet<String> {
        let inputs = dead.iter().flat_map(|&index| &self.node(index).input);
        let unused = inputs.filter(|name| {
            self.initializers.contains_key(name.as_str())
                && !self.is_kept(name)
                && !used.contains(name.as_str())
                && self.consumers(name).iter().all(|user| dead.contains(user))
        });
        unused.cloned().collect()
    }
}
