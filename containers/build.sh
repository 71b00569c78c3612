#!/usr/bin/env bash
# Build the image, push it to Artifact Registry and print the reference by digest that --gke-image wants:
#     containers/build.sh PROJECT REGION REPOSITORY
# Docker builds it here when its daemon answers and this machine is amd64; else Cloud Build does. Repeating is harmless.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# -eq 3 ]] || { echo "usage: containers/build.sh PROJECT REGION REPOSITORY" >&2; exit 2; }
project=$1 region=$2 repository=$3
commit=$(git rev-parse HEAD)
[[ -z $(git status --porcelain -- harness containers) ]] \
    || { echo "build.sh: harness/ or containers/ has uncommitted changes: commit them first" >&2; exit 1; }
image="$region-docker.pkg.dev/$project/$repository/harness"
gcloud artifacts repositories describe "$repository" --project "$project" --location "$region" >/dev/null 2>&1 \
    || gcloud artifacts repositories create "$repository" --project "$project" --location "$region" --repository-format docker

if [[ $(uname -m) != x86_64 ]]; then
    why="this machine is $(uname -m), and the image is compiled for amd64"
elif ! command -v docker >/dev/null; then
    why="there is no docker here"
elif ! docker info >/dev/null 2>&1; then
    why="docker's daemon does not answer"
else
    why=
fi
if [[ -z $why ]]; then
    gcloud auth configure-docker "$region-docker.pkg.dev" --quiet
    docker build --platform linux/amd64 --build-arg "GIT_COMMIT=$commit" \
        --tag "$image:$commit" --file containers/Dockerfile .
    docker push "$image:$commit"
else
    echo "build.sh: Cloud Build builds the image: $why" >&2
    gcloud builds submit . --project "$project" --config containers/cloudbuild.yaml \
        --substitutions "_IMAGE=$image:$commit,_COMMIT=$commit"
fi
digest=$(gcloud artifacts docker images describe "$image:$commit" --project "$project" --format 'value(image_summary.digest)')
echo "gke-image: $image@$digest"
