#!/usr/bin/env bash
# Build the image, push it to Artifact Registry and print the reference by digest that --gke-image wants:
#     containers/build.sh PROJECT REGION REPOSITORY
# With docker here, it builds here; without, Cloud Build builds it. Repeating it is harmless.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# -eq 3 ]] || { echo "usage: containers/build.sh PROJECT REGION REPOSITORY" >&2; exit 2; }
project=$1 region=$2 repository=$3
commit=$(git rev-parse HEAD)
[[ -z $(git status --porcelain -- harness containers requirements.lock) ]] \
    || { echo "build.sh: harness/, containers/ or requirements.lock has uncommitted changes: commit them first" >&2; exit 1; }
image="$region-docker.pkg.dev/$project/$repository/harness"
gcloud artifacts repositories describe "$repository" --project "$project" --location "$region" >/dev/null 2>&1 \
    || gcloud artifacts repositories create "$repository" --project "$project" --location "$region" --repository-format docker

if command -v docker >/dev/null; then
    gcloud auth configure-docker "$region-docker.pkg.dev" --quiet
    docker build --platform linux/amd64 --build-arg "GIT_COMMIT=$commit" \
        --tag "$image:$commit" --file containers/Dockerfile .
    docker push "$image:$commit"
else
    gcloud builds submit . --project "$project" --config containers/cloudbuild.yaml \
        --substitutions "_IMAGE=$image:$commit,_COMMIT=$commit"
fi
digest=$(gcloud artifacts docker images describe "$image:$commit" --project "$project" --format 'value(image_summary.digest)')
echo "gke-image: $image@$digest"
