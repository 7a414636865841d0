# Pod 0 founds the cluster, the others join it; with an identity in the folder all of them go on as what
# they are. The image has no shell: the one that runs this was copied from another (controllers.yaml).
set -u
# Without an address there is no page.
page=${PAGE_ADDRESS:+--ui $PAGE_ADDRESS}
token=/run/zbelastic/controller
case $POD_NAME in
*-0)
    # shellcheck disable=SC2086 # two words, or none
    exec zbelastic init --name kubernetes --bind 0.0.0.0:7000 --advertise "$POD_NAME.zbelastic:7000" $page
    ;;
esac
trap 'exit 75' TERM
# The secret is made after pod 0 has founded the cluster, and appears here within a minute.
until [ -s "$token" ] || [ -e "$ZBELASTIC_DATA_DIR/identity/node.json" ]; do
    /tools/busybox sleep 2
done
# shellcheck disable=SC2086 # two words, or none
exec zbelastic join --role controller --name "$POD_NAME" --cluster zbelastic-0.zbelastic:7000 \
    --bind 0.0.0.0:7000 --advertise "$POD_NAME.zbelastic:7000" --token-file "$token" $page
