//! CUDA backend of msdeform.
