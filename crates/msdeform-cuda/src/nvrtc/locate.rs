//! Where NVRTC may be: the loader path, a CUDA toolkit, the wheels `nvidia-cuda-nvrtc*`, torch.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::CudaVersion;

/// Folders of Python packages that somebody in this process told us about.
static ANNOUNCED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Adds folders of Python packages to every later search. A Python interpreter knows them; the
/// variables that name an environment are only set where somebody activated it.
pub fn search_packages(folders: Vec<PathBuf>) {
    *ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner) = folders;
}

/// What differs between systems: a value, so that tests look at both wherever they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    Unix,
    Windows,
}

impl Default for System {
    fn default() -> Self {
        if cfg!(windows) { Self::Windows } else { Self::Unix }
    }
}

impl System {
    /// The names the dynamic loader may know NVRTC by, newest first.
    const fn loader_names(self) -> &'static [&'static str] {
        match self {
            Self::Unix => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Self::Windows => &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
        }
    }

    /// What the file name of an NVRTC begins with.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Unix => "libnvrtc",
            Self::Windows => "nvrtc64_",
        }
    }

    /// The file name of NVRTC's builtins library, in the same folder as NVRTC.
    pub(super) fn builtins(self, CudaVersion { major, minor }: CudaVersion) -> String {
        match self {
            Self::Unix => format!("libnvrtc-builtins.so.{major}.{minor}"),
            Self::Windows => format!("nvrtc-builtins64_{major}{minor}.dll"),
        }
    }
}

/// Where a toolkit keeps libraries, below its root.
const TOOLKIT_FOLDERS: &[&str] =
    &["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "bin", "bin/x64"];

/// Where toolkits are installed on Windows, below the folder of programs.
const WINDOWS_TOOLKITS: &str = "NVIDIA GPU Computing Toolkit/CUDA";

/// Where wheels keep libraries, below site-packages: CUDA 13's one tree, CUDA 12's tree per library,
/// and the copy inside torch.
const WHEEL_FOLDERS: &[&str] = &[
    "nvidia/cu13/lib",
    "nvidia/cuda_nvrtc/lib",
    "nvidia/cu13/bin/x86_64",
    "nvidia/cuda_nvrtc/bin",
    "torch/lib",
];

/// What the search depends on, taken out of the process so that tests can make their own.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    /// `None` looks variables up in the process.
    variables: Option<HashMap<&'static str, OsString>>,
    /// Folders of Python packages from [`search_packages`].
    announced: Vec<PathBuf>,
    /// Toolkit roots and Python roots that no variable names; Windows has none.
    usual_roots: Vec<PathBuf>,
    system: System,
    use_loader: bool,
}

impl Environment {
    pub(super) fn of_process() -> Self {
        let system = System::default();
        let usual_roots = match system {
            System::Unix => ["/usr/local", "/usr", "/opt"].map(PathBuf::from).to_vec(),
            System::Windows => Vec::new(),
        };
        let announced = ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self { variables: None, announced, usual_roots, system, use_loader: true }
    }

    /// A machine of one system with nothing on it.
    #[cfg(test)]
    fn empty(system: System) -> Self {
        Self { system, variables: Some(HashMap::new()), ..Self::default() }
    }

    /// A machine with nothing but one folder.
    #[cfg(test)]
    pub(super) fn only(root: &Path) -> Self {
        Self { usual_roots: vec![root.to_owned()], ..Self::empty(System::Unix) }
    }

    #[cfg(test)]
    fn with(mut self, name: &'static str, value: &Path) -> Self {
        self.variables.get_or_insert_default().insert(name, value.into());
        self
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        match &self.variables {
            Some(variables) => variables.get(name).cloned(),
            None => std::env::var_os(name),
        }
    }

    /// The one the user names: a file, or a folder that holds it.
    pub(super) fn explicit(&self) -> Option<PathBuf> {
        let named = PathBuf::from(self.variable("MSDEFORM_NVRTC")?);
        if named.as_os_str().is_empty() {
            return None;
        }
        Some(self.libraries_in(&named).into_iter().next().unwrap_or(named))
    }

    /// Every file worth trying, and the bare names for the loader, newest major version first. Among
    /// equals the order is: what the loader knows, toolkits named by variables, the active Python
    /// environment, toolkits and Pythons in the usual places.
    pub(super) fn candidates(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = Vec::new();
        if self.use_loader {
            found.extend(self.system.loader_names().iter().map(PathBuf::from));
        }
        for folder in self.folders() {
            found.extend(self.libraries_in(&folder));
        }
        // Stable: keeps the order of places among equals.
        found.sort_by_key(|path| std::cmp::Reverse(major_version(path)));
        found
    }

    /// The places searched, in words.
    pub(super) fn describe(&self) -> String {
        let mut places = Vec::new();
        if self.use_loader {
            places.push(format!("the loader path ({})", self.system.loader_names().join(", ")));
        }
        places.extend(self.announced.iter().map(|folder| folder.display().to_string()));
        places.push("CUDA_HOME and CUDA_PATH".to_owned());
        let packages = "the Python packages of VIRTUAL_ENV, CONDA_PREFIX, PYTHONPATH and";
        match self.system {
            System::Unix => {
                places.push(format!("{packages} HOME"));
                let roots: Vec<_> =
                    self.usual_roots.iter().map(|root| root.display().to_string()).collect();
                places.push(format!("toolkits and Pythons below {}", roots.join(", ")));
            }
            System::Windows => {
                places.push(format!("{packages} Pythons in APPDATA and LOCALAPPDATA"));
                places.push(format!("toolkits in ProgramFiles/{WINDOWS_TOOLKITS}"));
            }
        }
        places.join("; ")
    }

    /// The folders of Python packages, those that were announced first.
    pub(super) fn site_packages(&self) -> Vec<PathBuf> {
        self.roots().1
    }

    /// Toolkits and folders of Python packages.
    fn roots(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let variable = |name| self.variable(name).map(PathBuf::from);
        let mut toolkits: Vec<PathBuf> =
            ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
        let mut site_packages: Vec<PathBuf> = self.announced.clone();
        if let Some(paths) = self.variable("PYTHONPATH") {
            site_packages.extend(std::env::split_paths(&paths));
        }
        for root in ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable) {
            site_packages.extend(python_packages(&root));
        }
        match self.system {
            System::Unix => {
                let home = variable("HOME").map(|home| home.join(".local"));
                site_packages.extend(home.iter().flat_map(|root| python_packages(root)));
            }
            System::Windows => {
                let programs = variable("ProgramFiles").map(|root| root.join(WINDOWS_TOOLKITS));
                toolkits.extend(programs.iter().flat_map(|root| children_named(root, "v")));
                let user = variable("APPDATA").map(|root| root.join("Python"));
                let own = user.iter().flat_map(|root| children_named(root, "Python3"));
                site_packages.extend(own.map(|python| python.join("site-packages")));
                let local = variable("LOCALAPPDATA").map(|root| root.join("Programs/Python"));
                let installed = local.iter().flat_map(|root| children_named(root, "Python3"));
                site_packages.extend(installed.flat_map(|python| python_packages(&python)));
            }
        }
        for root in &self.usual_roots {
            toolkits.extend(children_named(root, "cuda"));
            site_packages.extend(python_packages(root));
        }
        (toolkits, site_packages)
    }

    fn folders(&self) -> Vec<PathBuf> {
        let (toolkits, site_packages) = self.roots();
        let below = |roots: Vec<PathBuf>, folders: &'static [&'static str]| {
            roots.into_iter().flat_map(|root| folders.iter().map(move |folder| root.join(folder)))
        };
        below(toolkits, TOOLKIT_FOLDERS).chain(below(site_packages, WHEEL_FOLDERS)).collect()
    }

    /// The NVRTC libraries in a folder, without NVRTC's own builtins, which it loads itself.
    fn libraries_in(&self, folder: &Path) -> Vec<PathBuf> {
        let mut found = children_named(folder, self.system.prefix());
        found.retain(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| {
                !name.contains("builtins")
                    && !name.contains(".alt.")
                    && (name.contains(".so") || name.ends_with(".dll"))
            })
        });
        found
    }
}

/// `lib/python3.*/site-packages` and Debian's `dist-packages`, newest Python last found first.
fn python_packages(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.join("Lib/site-packages")];
    for library in ["lib", "lib64"] {
        for python in children_named(&root.join(library), "python3") {
            found.push(python.join("site-packages"));
            found.push(python.join("dist-packages"));
        }
    }
    found
}

/// Entries of a folder whose name starts with `prefix`, newest name first; none if it is not there.
fn children_named(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

/// The major version in `libnvrtc.so.13`, `libnvrtc-1a2b.so.12.0` or `nvrtc64_130_0.dll`; 0 unknown.
fn major_version(path: &Path) -> u32 {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let after = if let Some((_, rest)) = name.split_once(".so.") {
        rest.split('.').next().map(str::to_owned)
    } else {
        name.strip_prefix("nvrtc64_").and_then(|rest| rest.get(..2)).map(str::to_owned)
    };
    after.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) -> PathBuf {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"").unwrap();
        path.to_owned()
    }

    #[test]
    fn toolkits_wheels_and_torch_are_found_and_builtins_are_not() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let toolkit = touch(&root.join("cuda-12.8/lib64/libnvrtc.so.12"));
        touch(&root.join("cuda-12.8/lib64/libnvrtc-builtins.so.12.8"));
        let packages = root.join("venv/lib/python3.11/site-packages");
        let wheel = touch(&packages.join("nvidia/cu13/lib/libnvrtc.so.13"));
        let old_wheel = touch(&packages.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12"));
        let torch = touch(&packages.join("torch/lib/libnvrtc-672ee683.so.11.2"));
        let environment = Environment::only(root).with("VIRTUAL_ENV", &root.join("venv"));
        assert_eq!(environment.candidates(), [wheel, toolkit, old_wheel, torch]);
    }

    #[test]
    fn packages_of_the_running_python_are_searched_first() {
        let root = tempfile::tempdir().unwrap();
        let running = touch(&root.path().join("running/nvidia/cu13/lib/libnvrtc.so.13"));
        let packages = root.path().join("venv/lib/python3.11/site-packages");
        let active = touch(&packages.join("nvidia/cu13/lib/libnvrtc.so.13"));
        let mut environment =
            Environment::empty(System::Unix).with("VIRTUAL_ENV", &root.path().join("venv"));
        environment.announced = vec![root.path().join("running")];
        assert_eq!(environment.candidates(), [running, active]);
        assert!(environment.describe().contains("running"));
    }

    #[test]
    fn the_explicit_choice_may_be_a_file_or_a_folder() {
        let root = tempfile::tempdir().unwrap();
        let file = touch(&root.path().join("libnvrtc.so.13"));
        let explicit =
            |path: &Path| Environment::empty(System::Unix).with("MSDEFORM_NVRTC", path).explicit();
        assert_eq!(explicit(&file), Some(file.clone()));
        assert_eq!(explicit(root.path()), Some(file));
        assert_eq!(explicit(Path::new("/nowhere/x.so")), Some(PathBuf::from("/nowhere/x.so")));
        assert_eq!(explicit(Path::new("")), None);
    }

    #[test]
    fn windows_has_its_own_names_and_places() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let toolkits = at("Programs").join(WINDOWS_TOOLKITS);
        let new = touch(&toolkits.join("v13.0/bin/x64/nvrtc64_130_0.dll"));
        touch(&toolkits.join("v13.0/bin/x64/nvrtc-builtins64_130.dll"));
        touch(&toolkits.join("v13.0/bin/x64/nvrtc64_130_0.alt.dll"));
        let old = touch(&toolkits.join("v12.8/bin/nvrtc64_120_0.dll"));
        let own = touch(&at(
            "Roaming/Python/Python311/site-packages/nvidia/cu13/bin/x86_64/nvrtc64_130_0.dll",
        ));
        let installed = touch(&at(
            "Local/Programs/Python/Python312/Lib/site-packages/nvidia/cuda_nvrtc/bin/nvrtc64_120_0.dll",
        ));
        let torch = touch(&at("venv/Lib/site-packages/torch/lib/nvrtc64_112_0.dll"));
        let environment = Environment::empty(System::Windows)
            .with("ProgramFiles", &at("Programs"))
            .with("APPDATA", &at("Roaming"))
            .with("LOCALAPPDATA", &at("Local"))
            .with("VIRTUAL_ENV", &at("venv"));
        assert_eq!(environment.candidates(), [new, own, old, installed, torch]);
        let with_loader = Environment { use_loader: true, ..Environment::empty(System::Windows) };
        assert_eq!(with_loader.candidates()[0], Path::new("nvrtc64_130_0.dll"));
        assert!(with_loader.describe().contains("ProgramFiles"));
        let builtins = |system: System| system.builtins(CudaVersion { major: 12, minor: 8 });
        assert_eq!(builtins(System::Windows), "nvrtc-builtins64_128.dll");
        assert_eq!(builtins(System::Unix), "libnvrtc-builtins.so.12.8");
    }

    #[test]
    fn versions_are_read_from_every_kind_of_name() {
        let version = |name: &str| major_version(Path::new(name));
        assert_eq!(version("/x/libnvrtc.so.13"), 13);
        assert_eq!(version("libnvrtc-672ee683.so.11.2"), 11);
        assert_eq!(version("nvrtc64_130_0.dll"), 13);
        assert_eq!(version("libnvrtc.so"), 0);
    }
}
