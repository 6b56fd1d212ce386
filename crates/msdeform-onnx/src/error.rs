//! What can be wrong with a model.

/// Why a model was not read or not written.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// No protobuf.
    #[error("this is no ONNX model")]
    NotProtobuf(#[from] prost::DecodeError),
    /// A field that is longer than the file.
    #[error("the model is cut off: a field is longer than what is left of it")]
    CutOff,
    /// No graph, or several.
    #[error("this is no ONNX model: it does not have one graph")]
    NoGraph,
    /// Subgraphs in subgraphs without end.
    #[error("subgraphs are nested too deep")]
    TooDeep,
    /// A node that needs its own output.
    #[error(
        "the graph has a cycle: `{node}` needs a tensor that follows from its own output; export the model again"
    )]
    Cyclic {
        /// The first node of the file that is part of a cycle or comes after one.
        node: String,
    },
    /// The new model is not what it should be.
    #[error(
        "`{site}` was not found again in the rewritten model ({reason}); nothing was written. Please report this"
    )]
    NotConfirmed {
        /// The site.
        site: String,
        /// What is wrong with it.
        reason: String,
    },
}
