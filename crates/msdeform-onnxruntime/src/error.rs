//! What can be wrong with a node or a run of it. All of it reaches the user as the text of a status.

use ort_sys::OrtErrorCode;

/// Everything that can go wrong here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A tensor of another type.
    #[error("`{tensor}` is {found}, expected {expected}; put a Cast before the node")]
    Type { tensor: &'static str, found: String, expected: String },
    /// An attribute that makes no sense.
    #[error("attribute `{name}` {found}; {expected}")]
    Attribute { name: &'static str, found: String, expected: String },
    /// A tensor on another device than the provider's.
    #[error("`{tensor}` has no data in host memory; run the session with its inputs on the CPU")]
    NoData { tensor: &'static str },
    /// The description of the call makes no sense, or it cannot be computed.
    #[error(transparent)]
    Problem(#[from] msdeform::Error),
    /// No GPU that can be used, or what it refuses.
    #[error(transparent)]
    Cuda(#[from] msdeform_cuda::Error),
    /// The variant that would run.
    #[error(
        "variant `{variant}` needs a workspace, which a session has none of; name another one, or none"
    )]
    Workspace { variant: &'static str },
    /// What the runtime itself said.
    #[error("{0}")]
    Runtime(String),
    /// A bug.
    #[error("msdeform panicked; the message is on the standard error output, please report it")]
    Panic,
}

impl Error {
    /// The kind of failure, as the runtime names it.
    pub(crate) const fn code(&self) -> OrtErrorCode {
        match self {
            Self::Problem(
                msdeform::Error::NoMemory { .. }
                | msdeform::Error::Threads { .. }
                | msdeform::Error::Unsupported { .. },
            )
            | Self::Cuda(_)
            | Self::Runtime(_)
            | Self::Panic => OrtErrorCode::ORT_FAIL,
            _ => OrtErrorCode::ORT_INVALID_ARGUMENT,
        }
    }
}
